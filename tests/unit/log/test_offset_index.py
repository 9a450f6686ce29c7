"""Both indexes: searches, what cannot be right, and files that change under a reader."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from bisect import bisect_right
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.log.offset_index import IndexFile, OffsetIndex, read_entries
from lapse.log.time_index import TimeIndex

BASE = 1000
MANY = 20_000  # 160 KB and 240 KB: asked in the file, not held


def offset_index(path: Path, entries: list[tuple[int, int]]) -> OffsetIndex:
    path.write_bytes(b"".join(struct.pack(">ii", o - BASE, p) for o, p in entries))
    return OffsetIndex(path, BASE, read_entries(path, 8), from_file=True)


def time_index(path: Path, entries: list[tuple[int, int]]) -> TimeIndex:
    path.write_bytes(b"".join(struct.pack(">qi", t, o - BASE) for t, o in entries))
    return TimeIndex(path, BASE, read_entries(path, 12), from_file=True)


@pytest.mark.parametrize("n", [0, 1, 7, MANY])
def test_searches(n: int, tmp_path: Path) -> None:
    """T-16, and its counterpart for offsets: the greatest entry at or below."""
    offsets = [BASE + 3 * i for i in range(1, n + 1)]
    index = offset_index(tmp_path / "i", [(o, 10 * o) for o in offsets])
    times = time_index(tmp_path / "t", [(o * 5, o) for o in offsets])
    assert isinstance(read_entries(tmp_path / "i", 8), IndexFile) == (n == MANY)
    for wanted in (0, BASE, BASE + 3, BASE + 4, BASE + 3 * n - 1, BASE + 3 * n, BASE + 3 * n + 9):
        at = bisect_right(offsets, wanted) - 1
        assert index.entry_before(wanted)[1] == (10 * offsets[at] if at >= 0 else 0)
        assert times.offset_before(wanted * 5) == (offsets[at] if at >= 0 else BASE)
    assert times.last == ((offsets[-1] * 5, offsets[-1]) if n else (-1, BASE))
    assert index.check(10 * (BASE + 4 * n) + 1, BASE + 4 * n + 1) is None
    assert times.check(BASE + 4 * n + 1) is None


@pytest.mark.parametrize("n", [5, MANY])
def test_it_grows_on_from_a_file(n: int, tmp_path: Path) -> None:
    entries = [(BASE + i, 10 * i) for i in range(1, n + 1)]
    index = offset_index(tmp_path / "i", entries).growing()
    index.append(BASE + n + 5, 10 * n + 7)
    index.write_out(RealFs())
    again = OffsetIndex(tmp_path / "i", BASE, read_entries(tmp_path / "i", 8), from_file=True)
    assert again.count == n + 1
    assert again.entry_before(BASE + n + 5)[1] == 10 * n + 7


@pytest.mark.parametrize("filler", [0, MANY])
@pytest.mark.parametrize(
    ("tail", "why"),
    [
        ([(0, 0)], "offsets do not ascend"),
        ([(1 << 20, 1 << 25), (1 << 20, 1 << 26)], "offsets do not ascend"),
        ([(1 << 20, 1 << 25), (1 << 21, 1 << 25)], "positions do not ascend"),
        ([(1 << 22, 1 << 25)], "past the end"),
        ([(1 << 20, 1 << 27)], "past the end"),
    ],
)
def test_what_cannot_be_right(
    tail: list[tuple[int, int]], why: str, filler: int, tmp_path: Path
) -> None:
    sound = [(BASE + i, 10 * i) for i in range(1, filler + 1)]
    index = offset_index(tmp_path / "i", [*sound, *((BASE + o, p) for o, p in tail)])
    if not filler and why == "offsets do not ascend" and len(tail) == 1:
        why = "positions do not ascend"  # a first entry may have offset 0, never position 0
    assert why in (index.check(1 << 27, BASE + (1 << 22)) or "")


def test_half_an_entry_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(bytes(12))
    with pytest.raises(CorruptData, match="not a multiple of 8"):
        read_entries(tmp_path / "i", 8)
    with pytest.raises(CorruptData, match="missing"):
        read_entries(tmp_path / "none", 8)


def test_a_file_cut_short_under_a_search_is_an_error_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    """In a process of its own: a map would end it by SIGBUS."""
    script = f"""
        import os, sys
        from pathlib import Path
        from tests.unit.log.test_offset_index import BASE, MANY, CorruptData, offset_index
        index = offset_index(Path({str(tmp_path / "i")!r}), [(BASE + n, n) for n in range(1, MANY)])
        os.truncate({str(tmp_path / "i")!r}, 800)
        assert index.entry_before(BASE + 50)[1] in range(51)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env=dict(os.environ),
    )
    assert done.returncode == 1, done.stderr
    assert "CorruptData" in done.stderr
    assert "became shorter" in done.stderr


def test_from_a_position_to_an_offset(tmp_path: Path) -> None:
    """Y-3: how far up aborted transactions are looked for."""
    index = offset_index(tmp_path / "i", [(1005, 400), (1009, 900)])
    found = {position: index.offset_from(position) for position in (0, 400, 401, 900, 901)}
    assert found == {0: 1005, 400: 1005, 401: 1009, 900: 1009, 901: None}
    assert offset_index(tmp_path / "none", []).offset_from(0) is None


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([(0, BASE), (5, BASE), (6, BASE + 8)], None),  # 1970 is a time as any
        ([(-1, BASE + 1)], "timestamps do not ascend"),
        ([(5, BASE + 1), (5, BASE + 2)], "timestamps do not ascend"),
        ([(5, BASE - 1)], "offsets go back"),
        ([(5, BASE + 2), (6, BASE + 1)], "offsets go back"),
        ([(5, BASE + 9)], "reaches past the end of its segment"),
    ],
)
def test_times_that_cannot_be_right(
    entries: list[tuple[int, int]], why: str | None, tmp_path: Path
) -> None:
    assert time_index(tmp_path / "t", entries).check(BASE + 9) == why


class Torn(RealFs):
    """A disk that is full after some bytes of each append."""

    def open_append(self, path: Path) -> AppendFile:
        file = super().open_append(path)
        write = file.write

        def torn(*buffers: Buffer) -> None:
            write(b"".join(buffers)[:5])
            raise StorageError(f"writing {path}: no space left")

        file.write = torn  # type: ignore[method-assign]
        return file


def test_what_a_failed_write_has_left_does_not_stay(tmp_path: Path) -> None:
    index = offset_index(tmp_path / "i", [(BASE + 1, 10)]).growing()
    index.append(BASE + 2, 20)
    with pytest.raises(StorageError):
        index.write_out(Torn())
    index.write_out(RealFs())
    assert (tmp_path / "i").read_bytes() == struct.pack(">iiii", 1, 10, 2, 20)
