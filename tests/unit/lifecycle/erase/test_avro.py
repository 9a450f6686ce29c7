"""Avro's blocks: what comes out is what was put in, and what is damaged is refused."""

from __future__ import annotations

import zlib

import pytest

from lapse.lifecycle.erase.avro import MAGIC, blocks_of
from tests.support.lifecycle.erase.avro import SYNC, deflated, file_of, number, sized


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("codec", [b"deflate", b"null", None])
def test_blocks_come_out_as_they_went_in(codec: bytes | None, by_size: bool) -> None:
    blocks = [b"a" * 300, b"", bytes(range(256)) * 9]
    assert list(blocks_of(file_of(*blocks, codec=codec, by_size=by_size))) == blocks


def test_a_file_of_no_block_is_one() -> None:
    assert list(blocks_of(file_of())) == []


def test_every_cut_is_seen() -> None:
    whole = file_of(b"some bytes", b"more bytes")
    ends = {len(file_of()), len(file_of(b"some bytes")), len(whole)}
    for end in range(len(MAGIC), len(whole)):
        if end not in ends:
            with pytest.raises(ValueError, match=r"ends early|not all"):
                list(blocks_of(whole[:end]))


def test_what_is_damaged_is_refused() -> None:
    whole = file_of(b"some bytes")
    with pytest.raises(ValueError, match="does not end where"):
        list(blocks_of(whole[:-1] + b"\xff"))
    with pytest.raises(ValueError, match="has no end"):
        list(blocks_of(MAGIC + b"\xff" * 11))
    with pytest.raises(ValueError, match="ends early"):
        list(blocks_of(MAGIC + number(1) + number(-9)))
    with pytest.raises(ValueError, match="codec b'zstandard'"):
        list(blocks_of(file_of(b"x", codec=b"zstandard")))
    at = whole.index(deflated(b"some bytes"))
    with pytest.raises(ValueError, match=r"invalid|not all"):
        list(blocks_of(whole[:at] + b"\xff" + whole[at + 1 :]))


def test_bytes_behind_the_end_of_what_was_deflated_are_not_passed_over() -> None:
    for behind in (b"the key", b"k", zlib.compress(b"some bytes")[-4:] + b"k"):
        data = file_of() + number(1) + sized(deflated(b"some bytes") + behind) + SYNC
        with pytest.raises(ValueError, match="not all inflated"):
            list(blocks_of(data))


def test_what_is_left_of_a_checksum_is_known() -> None:
    """PyIceberg leaves three bytes of it."""
    for left in (0, 3, 4):
        packed = deflated(b"some bytes") + zlib.compress(b"some bytes")[-4:][:left]
        data = file_of() + number(1) + sized(packed) + SYNC
        assert list(blocks_of(data)) == [b"some bytes"]
