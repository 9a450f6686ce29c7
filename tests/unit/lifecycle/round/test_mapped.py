"""Files that shrink under a map: an error for who reads them, never the end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import CorruptData
from lapse.lifecycle.round import mapped
from lapse.lifecycle.round.mapped import MappedFile

PAGE = 4096
REPOSITORY = Path(__file__).parents[4]


def in_a_process(script: str) -> subprocess.CompletedProcess[str]:
    """What might end a process is tried in one of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, PAGE, 3 * PAGE + 5])
def test_it_is_the_files_bytes(size: int, tmp_path: Path) -> None:
    path = tmp_path / "f"
    content = os.urandom(size)
    path.write_bytes(content + b"more")
    file = MappedFile(path, size)
    assert file.data.tobytes() == content
    assert not file.data.flags.writeable
    file.check()
    file.close()


def test_a_file_shorter_than_planned_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(99))
    with pytest.raises(CorruptData, match=r"shorter than planned \(100 bytes\) at byte 99"):
        MappedFile(path, 100)


def test_a_file_that_shrinks_reads_as_zeros_and_is_told(tmp_path: Path) -> None:
    done = in_a_process(f"""
        import os
        from pathlib import Path
        from lapse.lifecycle.round.mapped import MappedFile
        path, other = Path({str(tmp_path / "f")!r}), Path({str(tmp_path / "g")!r})
        for p in (path, other):
            p.write_bytes(b"x" * {9 * PAGE})
        file, sound = MappedFile(path, {9 * PAGE}), MappedFile(other, {9 * PAGE})
        os.truncate(path, {PAGE + 7})
        print(int((file.data == ord("x")).sum()), int((sound.data == ord("x")).sum()))
        sound.check()
        try:
            file.check()
        except Exception as e:
            print(type(e).__name__, e)
        again = MappedFile(path, 5)
        again.check()
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{PAGE + 7} {9 * PAGE}"
    assert f"CorruptData {tmp_path / 'f'}: the segment is shorter" in done.stdout
    assert f"at byte {PAGE + 7}" in done.stdout


def test_a_file_that_is_whole_again_is_told_of_all_the_same(tmp_path: Path) -> None:
    """What was read meanwhile were zeros."""
    path = tmp_path / "f"
    content = b"x" * (3 * PAGE)
    path.write_bytes(content)
    file = MappedFile(path, len(content))
    os.truncate(path, PAGE)
    assert file.data[-1] == 0
    with path.open("r+b") as again:
        again.write(content)
    with pytest.raises(CorruptData, match="shorter than planned"):
        file.check()
    file.close()


@pytest.mark.parametrize("others_open", [True, False])
def test_a_fault_elsewhere_goes_where_it_went_before(others_open: bool, tmp_path: Path) -> None:
    """Masking somebody else's fault would hand out zeros for his data."""
    done = in_a_process(f"""
        import faulthandler, mmap, os
        from pathlib import Path
        from lapse.lifecycle.round.mapped import MappedFile
        faulthandler.enable()
        path = Path({str(tmp_path / "f")!r})
        path.write_bytes(b"x" * {3 * PAGE})
        ours = MappedFile(path, 5)
        if not {others_open}:
            ours.close()
        fd = os.open(path, os.O_RDWR)
        theirs = mmap.mmap(fd, {3 * PAGE})
        os.truncate(path, 10)
        print(theirs[{2 * PAGE}])
    """)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr


def test_maps_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(PAGE))
    before = signal.getsignal(signal.SIGBUS)
    for _ in range(3):
        files = [MappedFile(path, PAGE) for _ in range(10)]
        for file in files[::-1]:
            file.close()
    assert signal.getsignal(signal.SIGBUS) is before
    assert mapped._guard is None or not mapped._guard._table.any()


def test_more_files_than_can_be_watched_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    monkeypatch.setattr(mapped, "_guard", None)  # as on a system without the handler
    file = MappedFile(path, 3)
    os.truncate(path, 0)
    assert file.data.tobytes() == b"abc"
    assert not file.data.flags.writeable, "the kernels know one type of array"
    file.check()
    file.close()


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    read = np.fromfile

    def shrunk(path: Path, *how: object) -> object:
        os.truncate(path, 99)
        return read(path, *how)  # type: ignore[call-overload]

    monkeypatch.setattr(mapped, "_guard", None)  # as on a system without the handler
    monkeypatch.setattr(np, "fromfile", shrunk)
    with pytest.raises(CorruptData, match=r"shorter than planned \(100 bytes\) at byte 99"):
        MappedFile(path, 100)


@pytest.mark.skipif(sys.platform != "linux", reason="only where files are mapped")
def test_so_many_maps_are_watched_and_no_more() -> None:
    """Each has a slot of its own, which is another's once it is given back."""
    guard = mapped._Guard()
    slots = [guard.enter(PAGE * n, PAGE) for n in range(1, mapped.SLOTS + 1)]
    assert slots == list(range(mapped.SLOTS))
    assert guard.enter(PAGE * (mapped.SLOTS + 1), PAGE) is None
    guard.leave(7)
    assert guard.enter(PAGE, PAGE) == 7
    assert guard.hits(7) == 0
    for slot in range(mapped.SLOTS):
        guard.leave(slot)
