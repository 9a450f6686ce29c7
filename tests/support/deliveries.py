"""Delivery reports of librdkafka's client for Python that may take a lock.

After a fatal error (a fenced producer's, say) the client calls what reports the deliveries left
while its own exception is pending. The first call into C from there returns what it should and
raises SystemError all the same: `with lock:` takes the lock and never gives it back, and whoever
wants it next waits for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

Report = Callable[[KafkaError | None, Message], None]

# What `poll` and `flush` raise after a fatal error: sometimes the client loses its own exception.
FATAL = (KafkaException, SystemError)


def safely(report: Report) -> Report:
    """For `on_delivery`: what is pending is raised after the report."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        try:
            ctypes.pythonapi.PyErr_CheckSignals()  # any call of `ctypes` raises what is pending
        finally:
            report(error, message)

    return delivered
