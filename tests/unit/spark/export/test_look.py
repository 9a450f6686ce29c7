"""What an export sees of a topic before it reads it, at a running node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lapse.base.ids import TopicPartition
from lapse.spark.export.look import at_brokers
from lapse.spark.scan.files import DataLost
from lapse.testing.clock import ManualClock
from tests.support.broker.running import create
from tests.unit.spark.scan.test_broker import Broker, anew

NOW = 1_900_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        yield broker
    finally:
        broker.stop()


def test_ends_of_another_topic_of_the_name_do_not_count(broker: Broker) -> None:
    """It was made anew between the two questions: old and new rows would be one table."""
    where = TopicPartition("made", 0)
    broker.do(lambda node: create(node, "made", 1))
    broker.write(where, 0, 5)
    topic, clock = at_brokers("made", broker.bootstrap, {}, {}), ManualClock(NOW)
    seen = topic.look(clock)
    assert (seen.topic_id, dict(seen.extents), seen.now_ms) == (topic.topic_id, {0: (0, 10)}, NOW)
    anew(broker, where)
    with pytest.raises(DataLost, match=r"made was made anew meanwhile: its id is .*, not "):
        topic.look(clock)
    again = at_brokers("made", broker.bootstrap, {}, {}).look(clock)
    assert (dict(again.extents), again.topic_id == seen.topic_id) == ({0: (0, 0)}, False)
