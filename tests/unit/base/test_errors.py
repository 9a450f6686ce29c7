"""Errors carry what whoever handles them needs."""

from __future__ import annotations

from lapse.base import errors
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError


def test_every_error_of_ours_is_a_lapse_error() -> None:
    own = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(own) > 5
    assert all(issubclass(e, LapseError) for e in own)


def test_what_they_carry() -> None:
    refusal = KafkaError(ErrorCode.INVALID_RECORD, "t-0: no key")
    assert (refusal.code, str(refusal)) == (87, "t-0: no key")
    corrupt = CorruptData("t-0/5.log", 61, "checksum does not match")
    assert (corrupt.where, corrupt.position, corrupt.reason) == (
        "t-0/5.log", 61, "checksum does not match",
    )  # fmt: skip
    assert str(corrupt) == "t-0/5.log: checksum does not match at byte 61"
