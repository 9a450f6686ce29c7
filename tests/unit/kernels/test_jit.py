"""Where compiled kernels are kept (each rule cost minutes to find)."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from lapse.kernels import jit


def test_the_key_changes_with_any_kernel_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editing a helper alone must invalidate its callers, wherever they are."""
    for source in Path(jit.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(jit, "_KERNELS", tmp_path)
    before = jit.cache_key()
    assert before == jit.cache_key()
    keys = {before}
    for source in sorted(tmp_path.glob("*.py")):
        original = source.read_bytes()
        source.write_bytes(original + b"\n")
        keys.add(jit.cache_key())
        source.write_bytes(original)
    assert len(keys) == 1 + len(list(tmp_path.glob("*.py")))
    assert jit.cache_key() == before
    (tmp_path / "varint.py").rename(tmp_path / "varints.py")
    assert jit.cache_key() != before


def test_the_cache_may_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_KERNEL_CACHE", str(tmp_path))
    assert jit.cache_dir() == tmp_path / jit.cache_key()


def test_else_it_is_the_environments_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPSE_KERNEL_CACHE", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert jit.cache_dir() == tmp_path / "venv/var/lapse/kernels" / jit.cache_key()
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))  # nothing can be made below it
    assert jit.cache_dir() == tmp_path / "home/lapse/kernels" / jit.cache_key()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert jit.cache_dir() == tmp_path / f"lapse-kernels-{os.getuid()}" / jit.cache_key()


def test_only_its_owner_may_enter_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_KERNEL_CACHE", str(tmp_path / "a" / "b"))
    umask = os.umask(0)
    try:
        made = jit.cache_dir()
    finally:
        os.umask(umask)
    assert made is not None
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made, *made.parents[:2])] == [0o700] * 3


def test_a_user_without_a_home_has_a_place_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPSE_KERNEL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it does then
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert jit.cache_dir() == tmp_path / f"lapse-kernels-{os.getuid()}" / jit.cache_key()


@pytest.mark.parametrize("whose", ["the cache itself", "the folder above it"])
def test_where_others_could_plant_something_no_cache_is_kept(
    tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The name below the temporary directory can be foreseen."""
    monkeypatch.delenv("LAPSE_KERNEL_CACHE", raising=False)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted = tmp_path / f"lapse-kernels-{os.getuid()}" / jit.cache_key()
    planted.mkdir(parents=True)
    (planted if whose == "the cache itself" else planted.parent).chmod(0o777)
    assert jit.cache_dir() is None
    [said] = caplog.messages
    assert "compiled kernels are not kept" in said
    assert "others may write to" in said
    assert "LAPSE_KERNEL_CACHE" in said


def test_a_planted_index_is_not_unpickled(tmp_path: Path) -> None:
    """Numba unpickles what it finds; whoever may write there could run anything as us."""
    cache, marker = tmp_path / "cache", tmp_path / "it ran"
    environment = {**os.environ, "LAPSE_KERNEL_CACHE": str(cache)}

    def use_a_kernel() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _USES_A_KERNEL]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert use_a_kernel().stderr == ""
    [folder] = cache.iterdir()
    indexes = list(folder.rglob("*.nbi"))
    assert indexes
    bomb = pickle.dumps(_Bomb(str(marker)))
    for index in indexes:
        index.write_bytes(bomb)
    cache.chmod(0o777)
    done = use_a_kernel()
    assert not marker.exists()
    assert done.stderr.count("compiled kernels are not kept") == 1
    assert all(index.read_bytes() == bomb for index in indexes)
    cache.chmod(0o700)
    with contextlib.suppress(subprocess.CalledProcessError):  # the bomb is one
        use_a_kernel()
    assert marker.exists()


class _Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self._path),)


def test_a_package_that_lies_somewhere_else_finds_its_kernels_compiled(tmp_path: Path) -> None:
    """As on an executor, where it was unpacked a moment ago (Numba itself goes by its path)."""
    package = Path(jit.__file__).parents[1]
    shutil.copytree(package, tmp_path / "unpacked" / "lapse", copy_function=shutil.copyfile)
    said = subprocess.run(
        [sys.executable, "-c", _USES_A_KERNEL],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, hits, misses = said.stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    assert (hits, misses) == ("1", "0")


_USES_A_KERNEL = """
import lapse, numpy
from lapse.kernels.crc32c import crc32c
crc32c(numpy.zeros(9, numpy.uint8), 0, 9)
stats = crc32c.stats
print(lapse.__file__, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_what_others_compile_lies_where_it_would_without_us(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(
        "import lapse.kernels.jit, numba\n"
        "@numba.njit(cache=True)\n"
        "def f(x):\n    return x + 1\n"
        "f(1)\n"
    )
    subprocess.run([sys.executable, tmp_path / "theirs.py"], check=True)
    assert list((tmp_path / "__pycache__").glob("theirs.f-*.nbc"))


def _lock_is_free(folder: Path) -> bool:
    """As another process sees it."""
    probe = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'w') as lock:\n"
        "    try:\n"
        "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except BlockingIOError:\n"
        "        sys.exit(7)\n"
    )
    command = [sys.executable, "-c", probe, str(folder / ".lock")]
    code = subprocess.run(command, check=False).returncode
    assert code in {0, 7}
    return code == 0


def test_the_first_compile_is_a_lock_between_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has been done once; from then on nobody waits."""
    monkeypatch.setattr(jit, "CACHE_DIR", tmp_path)
    with contextlib.suppress(ZeroDivisionError), jit.first_compile("this"):
        assert not _lock_is_free(tmp_path)
        raise ZeroDivisionError  # it was not done
    for what, free in (("this", False), ("this", True), ("that", False), ("that", True)):
        with jit.first_compile(what):
            assert _lock_is_free(tmp_path) == free, what


def test_a_walk_counts_no_references() -> None:
    """An early return in a helper keeps Numba from pruning them: 40 cycles a record."""

    @jit.inlined
    def first_above(buf: NDArray[np.uint8], i: int, bound: int) -> int:
        if i >= buf.shape[0]:
            return -1
        for k in range(i, buf.shape[0]):
            if buf[k] > bound:
                return k
        return -1

    def count_above(buf: NDArray[np.uint8], bound: int) -> int:
        n = 0
        i = first_above(buf, 0, bound)
        while i >= 0:
            n += 1
            i = first_above(buf, i + 1, bound)
        return n

    walk: Any = numba.njit(**jit._OPTIONS)(count_above)
    assert walk(np.arange(10, dtype=np.uint8), 6) == 3
    [code] = walk.inspect_asm().values()
    assert "NRT_" not in code


def test_python_calls_no_helper_that_is_kept_nowhere() -> None:
    """Inlined ones are compiled anew in every process that calls them from Python: 0.1 s each."""
    source = Path(jit.__file__).parents[1]
    helpers = set()
    for path in (source / "kernels").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(d, ast.Name) and d.id == "inlined" for d in node.decorator_list
            ):
                helpers.add((f"lapse.kernels.{path.stem}", node.name))
    assert ("lapse.kernels.varint", "read_varint") in helpers
    called = [
        f"{path.relative_to(source)}: {alias.name}"
        for path in source.rglob("*.py")
        if path.parent.name != "kernels"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module, alias.name) in helpers
    ]
    assert called == []
