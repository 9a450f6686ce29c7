"""Bounds of the transaction coordinator's settings."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.coordination.transactions.settings import TransactionSettings


def test_defaults_are_kafkas() -> None:
    settings = TransactionSettings()
    assert settings.max_timeout_ms == 900_000
    assert settings.id_expiration_ms == 604_800_000
    assert settings.abort_timed_out_interval_ms == 10_000
    assert settings.remove_expired_interval_ms == 3_600_000
    assert settings.state_partitions == 50


@pytest.mark.parametrize(
    "wrong",
    [{"max_timeout_ms": 0}, {"id_expiration_ms": 1 << 31}, {"state_partitions": 0},
     {"transaction_version": 2}, {"transaction_version": -1}],
)  # fmt: skip
def test_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TransactionSettings(**wrong)
