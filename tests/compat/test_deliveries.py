"""A producer that was fenced reports the deliveries left, and no lock stays taken."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, Message, Producer

from lapse.testing.broker_process import BrokerProcess
from tests.support.deliveries import FATAL, safely

RECORDS = 50
SECONDS = 30
LOCK_SECONDS_MAX = 5.0


def test_a_report_after_a_fatal_error_gives_its_lock_back(
    broker: BrokerProcess, topic: str
) -> None:
    """All deliveries of one batch are reported while the client's own exception is pending."""
    lock, codes, stuck = threading.Lock(), [], 0

    def report(error: KafkaError | None, _: Message) -> None:
        nonlocal stuck
        if not lock.acquire(timeout=LOCK_SECONDS_MAX):
            stuck += 1
            return
        try:
            codes.append(None if error is None else error.code())
        finally:
            lock.release()

    shared = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 0}
    told: list[KafkaError] = []
    fenced = Producer({**shared, "linger.ms": 30_000, "error_cb": told.append})
    fenced.init_transactions(SECONDS)
    fenced.begin_transaction()
    fenced.produce(topic, b"v", partition=0)
    assert fenced.flush(SECONDS) == 0  # the partition is in the transaction: only Produce can fail
    for _ in range(RECORDS):  # none is sent before the flush
        fenced.produce(topic, b"v", partition=0, on_delivery=safely(report))
    Producer(shared).init_transactions(SECONDS)
    with pytest.raises(FATAL):
        fenced.flush(SECONDS)
    assert fenced.flush(SECONDS) == 0
    assert stuck == 0
    assert not lock.locked()
    assert codes == [KafkaError.INVALID_PRODUCER_EPOCH] * RECORDS
