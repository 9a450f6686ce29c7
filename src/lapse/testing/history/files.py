"""Compares a history with files: looks into any Kafka's logs, and Lapse's ledger with its logs.

A look is a run like a reader's, with `Isolation.FILES`: it finds records wherever their bytes lie
(replaced, deleted and unfinished files too), and `judge` uses it only for what must be gone by
then. It may be taken while a broker is at work: files that vanish meanwhile are passed over.

The ledger is read while nothing changes: the broker stopped, or killed and started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lapse.base.ids import TopicPartition
from lapse.kernels.layout import CONTROL
from lapse.lifecycle.round import ledger
from lapse.log.segment import LOG
from lapse.records.batch import Record, records_of, scan_prefix
from lapse.testing.history.account import Account
from lapse.testing.history.events import Isolation
from lapse.testing.history.recorder import Recorder
from lapse.testing.history.verdict import Fault, Finding


def look(recorder: Recorder, partition_dir: Path, *, name: str = "files") -> int:
    """Note all records that any file below a partition's folder has; how many there are.

    Raises ValueError for a folder that is not named `TOPIC-PARTITION`.
    """
    partition = _named(partition_dir)
    run = recorder.reader(name).begins(
        partition.topic, partition.partition, 0, Isolation.FILES, from_start=True
    )
    found = {
        record.offset: record
        for path in sorted(partition_dir.rglob("*"))
        if LOG in path.name or path.name.endswith("-log")
        for record in _records(path)
    }
    for offset, record in sorted(found.items()):
        run.read(offset, record.headers, record.key, record.value, record.timestamp)
    return len(found)


def ledger_findings(account: Account, partition_dir: Path, log_start: int) -> Iterator[Finding]:
    """What a log's files and its ledger say against each other.

    Every record that was acknowledged at or above `log_start` lies in one live file, or the ledger
    has its departure; never both.

    Raises CorruptData where the ledger does not parse.
    """
    partition = _named(partition_dir)
    there: dict[int, str] = {}
    for path in sorted(partition_dir.glob(f"*{LOG}")):
        for record in _records(path):
            if record.offset in there:
                said = f"lies in {there[record.offset]} and in {path.name}"
                yield Finding(Fault.DOUBLED, *partition, record.offset, "", said)
            there[record.offset] = path.name
    left = dict(_departures(partition_dir))
    for offset in sorted(there.keys() & left.keys()):
        said = f"lies in {there[offset]}, and the ledger says that round {left[offset]} removed it"
        yield Finding(Fault.LEDGER, *partition, offset, "", said)
    for sent in account.partition(*partition).between(log_start, 1 << 63):
        known = sent.acknowledged_ms is not None
        if known and sent.offset not in there and sent.offset not in left:
            said = "lies in no file, and the ledger does not say why"
            yield Finding(Fault.LEDGER, *partition, sent.offset, str(sent), said)


def _named(partition_dir: Path) -> TopicPartition:
    partition = TopicPartition.parse(partition_dir.name)
    if partition is None:
        raise ValueError(f"{partition_dir} is no partition's folder")
    return partition


def _departures(partition_dir: Path) -> Iterator[tuple[int, str]]:
    for entry in ledger.read(partition_dir):
        for removed in entry.removed:
            for relative in removed.offsets():
                yield removed.segment_base + relative, entry.round_id


def _records(path: Path) -> Iterator[Record]:
    """Data records of a file, as far as it parses."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return
    for row in scan_prefix(data)[0]:
        if not row["attributes"] & CONTROL:
            yield from records_of(data, row, path.name)
