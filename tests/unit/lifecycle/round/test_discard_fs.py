"""A rewrite to nowhere counts what it would have written and leaves no file."""

from __future__ import annotations

from pathlib import Path

from lapse.lifecycle.round.discard_fs import DiscardFs


def test_nothing_is_left(tmp_path: Path) -> None:
    fs = DiscardFs()
    file = fs.open_append(tmp_path / "f")
    file.reserve(100)
    file.write(b"ab", memoryview(b"cde"))
    file.copy_from(-1, 0, 7)
    file.fsync()
    file.close()
    fs.write_file(tmp_path / "g", b"x")
    fs.set_mtime_ns(tmp_path / "g", 1)
    fs.sync_all([tmp_path / "g"])
    assert file.size == 12
    assert list(tmp_path.iterdir()) == []
