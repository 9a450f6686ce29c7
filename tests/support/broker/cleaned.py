"""Topics whose tombstones leave at once, and the lifecycle services that see to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lapse.records.batch import records_of, scan_batches
from lapse.testing import warm
from tests.support.broker.cluster import Brokers, segments

AT_ONCE = {
    "cleanup_policy": "compact", "delete_retention_ms": "0", "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": "500", "max_compaction_lag_ms": "1000", "file_delete_delay_ms": "0",
    "lapse_tombstone_removal_max_lag_ms": "0",
}  # fmt: skip
BROKER = {"log.cleaner.backoff.ms": "200", "lapse.housekeeping.interval.ms": "200"}


@contextmanager
def cleaning(brokers: Brokers) -> Iterator[None]:
    """One lifecycle service beside all brokers; it waits for each while that is away."""
    configs = [str(one.config_path) for one in brokers.processes.values()]
    with Path(os.devnull).open("wb") as silent:
        service = warm.start(["lifecycle", *configs, "--engine", "inline"], silent.fileno(), {})
    assert service.stdout is not None
    with service.stdout:
        try:
            yield
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()


def records(data: Path, partition: str) -> list[tuple[bytes, bytes | None]]:
    """All of them, and some twice where a round's result is taking its place."""
    found = []
    for path, content in segments(data / partition).items():
        for row in scan_batches(content, path):
            for record in records_of(content, row, path):
                found.append((record.key or b"", record.value))
    return found
