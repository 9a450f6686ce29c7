"""Pages that were read are given back, and can be read again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lapse.lifecycle.round.mapped import MappedFile

SIZE = 32 << 20


def file_pages_kib() -> int:
    """Pages of files that this process has mapped; those of a file system in memory count apart."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssFile:", "RssShmem:")))


@pytest.mark.skipif(sys.platform != "linux", reason="only where files are mapped")
def test_it_is_no_more_in_memory_and_still_the_files_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    file = MappedFile(path, SIZE)
    total = int(file.data[::4096].sum())
    full = file_pages_kib()
    file.forget()
    assert full - file_pages_kib() > SIZE // 1024 // 2
    assert int(file.data[::4096].sum()) == total
    file.check()
    file.close()
    file.forget()  # of one that is closed there is nothing to give back
