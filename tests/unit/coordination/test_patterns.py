"""Regular expressions from clients: RE2, the whole name, in linear time."""

from __future__ import annotations

import time

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.patterns import full_matches


def test_the_whole_name_must_match() -> None:
    names = ["tx-1", "tx-12", "my-tx-1", "tx-é", ""]
    assert full_matches("tx-.", names) == [True, False, False, True, False]
    assert full_matches("a|tx-1", names) == [True, False, False, False, False]
    assert full_matches(".*", names) == [True] * 5


@pytest.mark.parametrize("pattern", ["[", "(", "a)|(b", "(?<=a)b", r"(a)\1", "\ud83d"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        full_matches(pattern, [])
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_no_pattern_takes_for_ever() -> None:
    # Python's re would need 2^40 steps.
    began = time.monotonic()
    assert full_matches("(a+)+b", ["a" * 40]) == [False]
    assert time.monotonic() - began < 30
