"""Names of a segment's files, and one that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.log.segment import OFFSET_MAX, SegmentFiles, base_offset_of, empty_indexes
from lapse.log.txn_index import TxnIndex


@pytest.mark.parametrize(
    ("name", "offset"),
    [
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
    ],
)
def test_files_that_are_named_after_an_offset(name: str, offset: int | None) -> None:
    assert base_offset_of(name) == offset


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    indexes = empty_indexes(tmp_path, 0)
    with pytest.raises(StorageError, match=r"opening .*gone\.log: No such file"):
        SegmentFiles(tmp_path / "gone.log", *indexes, TxnIndex(tmp_path / "t", 0, ()))
