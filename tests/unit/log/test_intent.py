"""Which old segments a commit under way replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.intent import INTENT, ReplacedGroup, lower
from lapse.log.summary import FOLDER

BASES = (0, 40)


@pytest.mark.parametrize(
    ("sizes", "base_offset", "size", "expected"),
    [
        ((500, 600), 40, 600, True),
        ((500, 600), 0, 500, True),
        ((500, 600), 40, 500, False),  # another file of that name
        ((500, 600), 80, 600, False),
        ((), 40, 600, True),  # of a version that noted none
        ((), 80, 600, False),
        ((500,), 0, 500, False),  # of whom, nobody knows
    ],
)
def test_an_old_segment_is_known_by_its_bytes_where_they_were_noted(
    sizes: tuple[int, ...], base_offset: int, size: int, expected: bool
) -> None:
    assert ReplacedGroup(0, BASES, sizes).replaces(base_offset, size) is expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"end_offset":10,"name":"a-0"}', b'{"end_offset":5,"name":"a-0"}'),
        (b'{"end_offset":5,"name":"a-0"}', None),
        (b'{"end_offset":-1}', None),  # a trim moves no checkpoint
        (b'{"end_offset":"x"}', None),
        (b'{"end_off', None),
        (b"[]", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_an_intent_says_nothing_of_what_is_cut(
    tmp_path: Path, before: bytes, after: bytes | None
) -> None:
    path = tmp_path / FOLDER / INTENT
    path.parent.mkdir()
    path.write_bytes(before)
    lower(RealFs(), tmp_path, 5)
    assert path.read_bytes() == (before if after is None else after)


def test_no_intent_is_nothing_to_lower(tmp_path: Path) -> None:
    lower(RealFs(), tmp_path, 5)
    assert list(tmp_path.iterdir()) == []


def test_an_intent_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER / INTENT).mkdir(parents=True)
    with pytest.raises(StorageError, match=r"reading .*intent"):
        lower(RealFs(), tmp_path, 5)
