"""How kernels are compiled, and where the compiled code is kept.

Measured traps this file exists for (each cost minutes to find):

- editing a helper does not invalidate the cached code of its callers, so the cache directory is
  keyed by a hash of *all* kernel sources;
- four cold processes compile four times over, so `first_compile` is a lock around it;
- `NUMBA_CPU_NAME=generic` aborts the process, so the portable target on x86 is `x86-64-v3`;
- Numba looks for compiled code by the path and the time of the source, so a package that was
  unpacked somewhere else, as on an executor, would compile again: `KernelCacheLocator` does not.

Compiled code is unpickled and run. So it is kept in folders alone that no other user may change
(`base.own`); where there is none it is kept nowhere, and every process compiles for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import caching

from lapse.base.errors import StorageError
from lapse.base.fs import make_own_dir

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Without Numba's counting of references: kernels own no array and make none. It took an atomic
# instruction or two at every call of a helper, inlined or not: half of a walk over records.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_KERNELS = Path(__file__).parent
_NUMBAS_LOCATORS = (
    "UserProvidedCacheLocator",
    "InTreeCacheLocator",
    "UserWideCacheLocator",
    "IPythonCacheLocator",
    "ZipCacheLocator",
)
_PORTABLE_CPU = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}


def cache_key() -> str:
    """Package and compiler version, and a hash of every kernel source."""
    digest = hashlib.sha256()
    for source in sorted(_KERNELS.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return f"{version('lapse')}-numba{numba.__version__}-{python}-{digest.hexdigest()[:16]}"


def cache_dir() -> Path | None:
    """A folder that only we may change: in the virtual environment, the user's cache, or /tmp.

    None where there is no such folder, or `LAPSE_KERNEL_CACHE` names another: the log says so.
    """
    refused = []
    for root in _cache_roots():
        path = root / cache_key()
        try:
            make_own_dir(path)
        except StorageError as e:
            refused.append(str(e))
        else:
            if os.access(path, os.W_OK):
                return path
            refused.append(f"{path} cannot be written to")
    logger.warning(
        "compiled kernels are not kept, so that each process compiles them anew, which takes "
        "minutes: there is no folder for them that no other user may change (%s); set "
        "LAPSE_KERNEL_CACHE to one", "; ".join(refused),
    )  # fmt: skip
    return None


def _cache_roots() -> list[Path]:
    """Where compiled kernels may be kept, in the order of trying."""
    chosen = os.environ.get("LAPSE_KERNEL_CACHE")
    if chosen:
        return [Path(chosen)]
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    roots = [
        Path(sys.prefix) / "var" / "lapse" / "kernels",
        user_cache / "lapse" / "kernels",
        Path(tempfile.gettempdir()) / f"lapse-kernels-{os.getuid()}",
    ]
    return [root for root in roots if root.is_absolute()]  # not everybody has a home


class KernelCacheLocator(caching.UserProvidedCacheLocator):
    """Where Numba keeps our kernels: in `CACHE_DIR`, which is keyed by all their sources.

    Only ours: what else is compiled in this process lies where it would without us. Without a
    `CACHE_DIR` nothing of ours is kept.
    """

    def __init__(self, function: Callable[..., Any], _source: str) -> None:
        self._lineno = function.__code__.co_firstlineno
        assert CACHE_DIR is not None
        self._cache_path = str(CACHE_DIR)

    def get_source_stamp(self) -> str:
        """The same wherever the source lies, and whenever it was unpacked."""
        return Path(self._cache_path).name

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> KernelCacheLocator | None:
        """None for functions that are not our kernels."""
        return cls(function, source) if Path(source).parent == _KERNELS else None


def _configure() -> Path | None:
    """Point Numba at our cache and at the portable CPU target; must precede the first kernel."""
    path = cache_dir()
    others = numba.config.CACHE_LOCATOR_CLASSES or ",".join(_NUMBAS_LOCATORS)
    ours = f"{KernelCacheLocator.__module__}.{KernelCacheLocator.__name__}"
    numba.config.CACHE_LOCATOR_CLASSES = f"{ours},{others}"
    cpu = _PORTABLE_CPU.get(platform.machine())
    if cpu is not None and not numba.config.CPU_NAME:
        numba.config.CPU_NAME = cpu
        numba.config.CPU_FEATURES = ""
    return path


CACHE_DIR = _configure()


@contextlib.contextmanager
def first_compile(what: str) -> Iterator[None]:
    """Hold the machine-wide lock under which kernels are compiled for the first time.

    Once a block for `what` has ended, its kernels are in the cache and no process waits for them
    any more. Without a cache none ever does.
    """
    if CACHE_DIR is None:
        yield
        return
    done = CACHE_DIR / f".{what}-compiled"
    if done.exists():
        yield
        return
    with open(CACHE_DIR / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        done.touch()


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at first call, without the GIL, cached on disk."""
    is_kept = CACHE_DIR is not None
    return cast(Callable[P, R], numba.njit(cache=is_kept, **_OPTIONS)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A helper of kernels; LLVM inlines it into its callers."""
    return cast(Callable[P, R], numba.njit(forceinline=True, **_OPTIONS)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """One machine instruction or so, written as LLVM IR (see `machine.py`)."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
