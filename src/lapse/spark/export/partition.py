"""One partition of a run of an export, in a task: read, judge, and write what changes.

Nothing is shuffled: a key is in one partition. The task reads the keys of what is new, looks up in
them the rows that the table's files have, and writes two kinds of rows anew: those of files that
lose some, and the new records. A file all of whose rows stay is not touched, but where there are
many small ones. Files are written in the order of their offsets, and none has offsets on both sides
of one that stays: so no two files overlap, and each is in order without a merge.

Nothing here changes the table: what comes out counts once the run ends (`table`, `bucket_table`). A
task that runs twice writes other files; of one attempt the driver is told the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.base.decoding import from_json
from lapse.base.fs import RealFs
from lapse.base.ids import parse_topic_id
from lapse.spark.export.decide import Kind, Step
from lapse.spark.export.files import (
    FILE_RECORDS_MAX,
    STORED,
    NewFiles,
    Span,
    TableFile,
    read_rows,
    span_of,
)
from lapse.spark.export.judge import KEYS, ROWS, Partition, Verdict, judge
from lapse.spark.export.store import store_at
from lapse.spark.export.tables import created
from lapse.spark.scan import place
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import parse_options
from lapse.spark.scan.plan import Pruning
from lapse.spark.scan.read import read_split
from lapse.spark.views.keys import warm_up

SMALL_RECORDS = FILE_RECORDS_MAX // 10
SMALL_FILES_MAX = 8
TRIES_MAX = 5


class Asked(msgspec.Struct, frozen=True):
    """What a task is to do.

    Attributes:
        options: of `format("lapse")`: where the log is, and how to reach it.
        place: of the table (`store.store_at`).
        run_id: of the run, for what is not in place yet.
        is_late: keys may have gone from the log without a record that is new.
        topic_id: of the topic that is meant; None where the log does not say.
    """

    options: Mapping[str, str]
    topic: str
    partition: int
    step: Step
    kind: Kind
    is_late: bool
    place: str
    run_id: str
    topic_id: str | None = None


class Written(msgspec.Struct, frozen=True):
    """What it has done.

    Attributes:
        kept: files of the table whose rows all stay.
        added: names of new files, in the partition's folder of the run (`tables.created`).
        rows: that were written.
    """

    partition: int
    kept: tuple[str, ...]
    added: tuple[str, ...]
    rows: int


def write(encoded: bytes) -> bytes:
    """In a task: an `Asked`, and a `Written` in return.

    Raises what reading and writing raise; DataLost where a log is compacted faster than it is read.
    """
    warm_up()
    asked = from_json(encoded, Asked)
    for _ in range(TRIES_MAX):
        written = _written(asked)
        if written is not None:
            return msgspec.json.encode(written)
    raise DataLost(
        f"{asked.topic}-{asked.partition}: records that were the last of their keys have been "
        f"compacted away each of {TRIES_MAX} times; export it again"
    )


def _written(asked: Asked) -> Written | None:
    """None where a record that was to be a row has gone meanwhile.

    A round may take it between the two looks at the log, where its key has a newer one, beyond
    what this run reads. A key that was to lose its row for that record would be missing then.
    """
    store = store_at(asked.place, RealFs)
    files = {name: TableFile(store, name) for name in asked.step.files}
    readers = {name: partial(read_rows, path, ROWS) for name, path in files.items()}
    records = partial(_records, asked, KEYS)
    verdict = judge(Partition(asked.step, asked.kind, asked.is_late, records, readers))
    spans = {name: span_of(path) for name, path in files.items()}
    rewritten = _rewritten(spans, verdict)
    kept = tuple(name for name in files if name not in rewritten)
    create = created(store, asked.run_id, asked.partition)
    out = NewFiles(create, kept=[spans[name].first for name in kept])
    for name in rewritten:
        for rows in _staying(read_rows(files[name]), verdict.stay[name]):
            out.write(rows)
    stayed = out.rows
    for rows in _new_rows(asked, verdict):  # whose offsets are beyond those of all rows there are
        out.write(rows)
    if verdict.alive is not None and out.rows - stayed < len(verdict.alive):
        out.close()
        return None
    return Written(asked.partition, kept, out.close(), out.rows)


def _rewritten(spans: Mapping[str, Span], verdict: Verdict) -> list[str]:
    """Files that lose rows; and small ones where there are many, to become one with neighbours.

    In the order of their offsets. A small file between two that stay would become itself.
    """
    order = sorted(spans, key=lambda name: spans[name].first)
    losing = {name for name in order if verdict.stay[name] is not None}
    small = {name for name in order if spans[name].rows < SMALL_RECORDS} - losing
    if len(small) <= SMALL_FILES_MAX:
        return [name for name in order if name in losing]
    joined = losing.copy()
    for one, other in pairwise(order):
        if {one, other} <= small | losing:
            joined |= {one, other}
    return [name for name in order if name in joined]


def _staying(
    rows: Iterator[pa.RecordBatch], stay: NDArray[np.bool_] | None
) -> Iterator[pa.RecordBatch]:
    at = 0
    for some in rows:
        yield some if stay is None else some.filter(pa.array(stay[at : at + len(some)]))
        at += len(some)


def _new_rows(asked: Asked, verdict: Verdict) -> Iterator[pa.RecordBatch]:
    step = asked.step
    if verdict.alive is not None:
        if len(verdict.alive):
            only = Pruning(offsets=verdict.alive)
            begin, until = int(verdict.alive[0]), int(verdict.alive[-1]) + 1
            yield from _records(asked, STORED, begin, until, only)
        return
    for rows in _records(asked, STORED, step.start, step.end):
        dead = np.isin(rows.column("offset").to_numpy(), verdict.dead, assume_unique=True)
        yield rows.filter(pa.array(~dead)) if dead.any() else rows


def _records(
    asked: Asked, columns: tuple[str, ...], begin: int, until: int, wanted: Pruning | None = None
) -> Iterator[pa.RecordBatch]:
    """Committed records, in the order of the log."""
    if begin >= until:
        return
    where = asked.topic, str(asked.partition)
    given = {
        **asked.options,
        "assign": msgspec.json.encode({asked.topic: [asked.partition]}).decode(),
        "startingOffsets": _offset_of(where, begin),
        "endingOffsets": _offset_of(where, until),
        "kafka.isolation.level": "read_committed",
        "columns": ",".join(columns),
    }
    options = parse_options(given)
    topic_id = None if asked.topic_id is None else parse_topic_id(asked.topic_id)
    ids = {asked.topic: topic_id} if topic_id is not None and topic_id.int else {}
    for split in place.plan(options, Pruning()):
        yield from read_split(options, place.meant(split, ids), wanted)


def _offset_of(where: tuple[str, str], offset: int) -> str:
    topic, number = where
    return msgspec.json.encode({topic: {number: offset}}).decode()
