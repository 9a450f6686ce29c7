"""How kernels are compiled, and where the compiled code is kept.

Measured traps this file exists for (each cost minutes to find):

- editing a helper does not invalidate the cached code of its callers, so the cache directory is
  keyed by a hash of *all* kernel sources;
- four cold processes compile four times over, so `first_compile` is a lock around it;
- `NUMBA_CPU_NAME=generic` aborts the process, so the portable target on x86 is `x86-64-v3`;
- Numba looks for compiled code by the path and the time of the source, so a package that was
  unpacked somewhere else, as on an executor, would compile again: `KernelCacheLocator` does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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


def cache_dir() -> Path:
    """Inside the virtual environment if we may write there, else the user's cache, else /tmp."""
    chosen = os.environ.get("LAPSE_KERNEL_CACHE")
    if chosen:
        return Path(chosen) / cache_key()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for root in (Path(sys.prefix) / "var" / "lapse", user_cache / "lapse"):
        with contextlib.suppress(OSError):
            path = root / "kernels" / cache_key()
            path.mkdir(parents=True, exist_ok=True)
            if os.access(path, os.W_OK):
                return path
    return Path(tempfile.gettempdir()) / f"lapse-kernels-{os.getuid()}" / cache_key()


class KernelCacheLocator(caching.UserProvidedCacheLocator):
    """Where Numba keeps our kernels: in `CACHE_DIR`, which is keyed by all their sources.

    Only ours: what else is compiled in this process lies where it would without us.
    """

    def __init__(self, function: Callable[..., Any], _source: str) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._cache_path = str(CACHE_DIR)

    def get_source_stamp(self) -> str:
        """The same wherever the source lies, and whenever it was unpacked."""
        return CACHE_DIR.name

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> KernelCacheLocator | None:
        """None for functions that are not our kernels."""
        return cls(function, source) if Path(source).parent == _KERNELS else None


def _configure() -> Path:
    """Point Numba at our cache and at the portable CPU target; must precede the first kernel."""
    path = cache_dir()
    path.mkdir(parents=True, exist_ok=True)
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

    Once a block for `what` has ended, its kernels are in the cache and nobody waits any more.
    """
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
    return cast(Callable[P, R], numba.njit(cache=True, **_OPTIONS)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A helper of kernels; LLVM inlines it into its callers."""
    return cast(Callable[P, R], numba.njit(forceinline=True, **_OPTIONS)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """One machine instruction or so, written as LLVM IR (see `machine.py`)."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
