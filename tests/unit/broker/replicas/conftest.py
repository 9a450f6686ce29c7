"""Two brokers with a replica each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.testing.clock import ManualClock
from tests.support.broker.two import Broker, two_brokers
from tests.support.log.logs import NOW


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def brokers(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Broker, Broker]]:
    with two_brokers(tmp_path, clock) as made:
        yield made
