"""Moments as Kafka's milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lapse.base.errors import ConfigError
from lapse.client.offsets import to_ms


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 999_000, tzinfo=UTC), 1999),
        # A record of 1 ms is before 1.000001 s, and one of 1.001 s is not.
        (datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC), 1001),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
    ],
)
def test_moments(moment: datetime, ms: int) -> None:
    assert to_ms(moment) == ms


@pytest.mark.parametrize(
    "moment",
    [datetime(2020, 1, 1), datetime(1969, 12, 31, tzinfo=UTC)],  # noqa: DTZ001
)
def test_no_moments(moment: datetime) -> None:
    with pytest.raises(ConfigError, match="allowed is one"):
        to_ms(moment)
