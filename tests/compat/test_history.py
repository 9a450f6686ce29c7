"""Histories of a real Kafka that compacts: clean as they are, and not with a record taken out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.base.clock import SystemClock
from lapse.testing.history.events import Event, Isolation, Read
from lapse.testing.history.files import look
from lapse.testing.history.judge import judge
from lapse.testing.history.promise import Promise
from lapse.testing.history.recorder import Recorder
from lapse.testing.history.verdict import Fault
from tests.oracle.kafka import QUICK_FLAGS, RealKafka
from tests.support.recorded import RecordedProducer, sweep

TOPIC, KEYS, UPDATES = "prices", 20, 20
START_MS, STEP_MS = 1_700_000_000_000, 300  # each update in a segment of its own
SECONDS = 120
QUICK = {"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": 100}
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
    "message.timestamp.type": "CreateTime",
}


def write(bootstrap: str, recorder: Recorder) -> None:
    """Keys overwritten again and again, the last ones deleted; a commit and an abort between."""
    common = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    plain = RecordedProducer(recorder.producer("plain"), common)
    for update in range(UPDATES):
        for key in range(KEYS):
            value = None if key == 0 and update == UPDATES - 1 else b"%d" % update
            plain.send(TOPIC, b"%d" % key, value, 0, START_MS + STEP_MS * update)
        assert plain.client.flush(SECONDS) == 0
    other = RecordedProducer(recorder.producer("other"), {**common, "transactional.id": "other"})
    other.client.init_transactions(SECONDS)
    for n, end in enumerate((other.commit, other.abort, other.commit)):
        other.begin()
        for key in range(3):
            other.send(TOPIC, b"%d" % (key + n), b"t", 0, START_MS + STEP_MS * (UPDATES + n))
        assert other.client.flush(SECONDS) == 0  # or an abort forgets them
        end(SECONDS)
    assert not plain.errors
    assert not other.errors


@pytest.mark.usefixtures("kafka_jars")
def test_a_real_kafkas_compaction_is_clean(tmp_path: Path) -> None:
    events: list[Event] = []
    recorder = Recorder(events.append, SystemClock())
    with RealKafka(tmp_path / "kafka", QUICK, QUICK_FLAGS) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(SECONDS)
        recorder.promised(TOPIC, Promise.of(SETTINGS, slack_ms=None))
        write(kafka.bootstrap, recorder)
        until = time.monotonic() + SECONDS
        sweeps = 0
        while not sweeps or reads(events, f"s{sweeps}") > 3 * KEYS:
            assert time.monotonic() < until, "Kafka cleans nothing"
            sweeps += 1
            sweep(recorder, kafka.bootstrap, [(TOPIC, 0)], name=f"s{sweeps}")
        sweep(recorder, kafka.bootstrap, [(TOPIC, 0)], Isolation.UNCOMMITTED, name="uncommitted")
        assert look(recorder, kafka.log_dir / f"{TOPIC}-0") >= KEYS
    verdict = judge(events)
    assert verdict.findings == ()
    assert verdict.acknowledged == KEYS * UPDATES + 6
    assert verdict.judged > verdict.acknowledged
    newest = max(e.offset for e in events if isinstance(e, Read) and e.reader == f"s{sweeps}")
    kept = [e for e in events if not (isinstance(e, Read) and e.offset == newest)]
    assert set(judge(kept).count()) == {Fault.LOST}


def reads(events: list[Event], reader: str) -> int:
    return sum(isinstance(event, Read) and event.reader == reader for event in events)
