"""Names of a segment's files, and one that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.log.segment import (
    INDEX,
    LOG,
    OFFSET_MAX,
    SegmentFiles,
    base_offset_of,
    empty_indexes,
    offsets_in,
)
from lapse.log.txn_index import TxnIndex

NAMED = [
    ("00000000000000000042.log", 42),
    ("00000000000000000042.log.swap", 42),
    (f"{OFFSET_MAX:020d}.index", OFFSET_MAX),
    (f"{OFFSET_MAX + 1:020d}.index", None),
    ("0000000000000000042.log", None),
    ("000000000000000000042.log", None),
    ("leader-epoch-checkpoint", None),
    ("twenty-letters-of-it.log", None),
    ("+0000000000000000042.log", None),
    ("\u0660" * 20 + ".log", None),  # digits, of another script
]


@pytest.mark.parametrize(("name", "offset"), NAMED)
def test_files_that_are_named_after_an_offset(name: str, offset: int | None) -> None:
    assert base_offset_of(name) == offset


def test_those_of_one_kind_in_their_order() -> None:
    """A name that ends like one and is none is not taken for the file of its offset."""
    others = ["00000000000000000007.log", "00000000000000000007.old.log", ".log"]
    names = [*others, *(name for name, _ in NAMED)]
    assert offsets_in(names, LOG) == [7, 42]
    assert offsets_in(names, INDEX) == [OFFSET_MAX]


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    indexes = empty_indexes(tmp_path, 0)
    with pytest.raises(StorageError, match=r"opening .*gone\.log: No such file"):
        SegmentFiles(tmp_path / "gone.log", *indexes, TxnIndex(tmp_path / "t", 0, ()))
