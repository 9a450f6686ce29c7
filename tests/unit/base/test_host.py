"""What a container may have is no more than the machine has, and less where its group says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lapse.base.host import memory_bytes, processors


def test_without_a_group_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 <= processors(tmp_path) <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("text", "limited"), [("max\n", False), ("1048576\n", True)])
def test_memory_of_a_group(tmp_path: Path, text: str, limited: bool) -> None:
    (tmp_path / "memory.max").write_text(text)
    assert (memory_bytes(tmp_path) == 1 << 20) == limited


@pytest.mark.parametrize(
    ("text", "found"), [("50000 100000\n", 1), ("100000 100000\n", 1), ("1 100000", 1)]
)
def test_processors_of_a_group(tmp_path: Path, text: str, found: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert processors(tmp_path) == found


def test_no_quota_and_a_large_one(tmp_path: Path) -> None:
    all_of_them = processors(tmp_path)
    for text in ("max 100000\n", "100000000 100000\n"):
        (tmp_path / "cpu.max").write_text(text)
        assert processors(tmp_path) == all_of_them
