"""Transaction markers: the control batch that ends a producer's transaction in a partition.

One record: its key says ABORT or COMMIT, its value which epoch the transaction coordinator had
(`records.control`). Written by `PartitionLog.append_marker`, read again wherever producers are
made from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from lapse.base.fs import Buffer
from lapse.kernels.layout import CONTROL, HEADER_SIZE
from lapse.kernels.markers import ABORT, COMMIT
from lapse.log.summary import Marker
from lapse.records.batch import Header, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.control import control_type, coordinator_epoch

_KEY = struct.Struct(">hh")  # version, type
_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0

# The record as Kafka writes it: length, attributes, time and offset delta, key, value, no headers.
_RECORD = struct.Struct(">5shhBhiB")
_RECORD_BEGINS = bytes([0x20, 0, 0, 0, 0x08])
_VALUE_LENGTH = 0x0C


class EndMarker(NamedTuple):
    """The content of a marker."""

    commit: bool
    coordinator_epoch: int


def kind_of(marker: EndMarker | None) -> Marker:
    """The marker's type in a summary; None: a control batch that was read and ends nothing."""
    if marker is None:
        return Marker.OTHER
    return Marker.COMMIT if marker.commit else Marker.ABORT


def is_marker(batch: Header) -> bool:
    """Whether it may be one: a producer's control batch that is not emptied."""
    return bool(batch.attributes & CONTROL) and batch.count > 0 and batch.producer_id >= 0


def parse_marker(batch: Buffer, where: str) -> EndMarker | None:
    """The marker in a control batch; None for control records of other types.

    Raises CorruptData where it does not parse.
    """
    if len(batch) == HEADER_SIZE + _RECORD.size:
        begins, _, kind, value_length, _, epoch, headers = _RECORD.unpack_from(batch, HEADER_SIZE)
        if (begins, value_length, headers) == (_RECORD_BEGINS, _VALUE_LENGTH, 0):
            return EndMarker(kind == COMMIT, epoch) if kind in (ABORT, COMMIT) else None
    row = scan_batches(batch, where)[0]
    record = next(records_of(batch, row, where), None)
    kind_name = control_type(record.key) if record is not None else None
    if record is None or kind_name not in ("ABORT", "COMMIT"):
        return None
    return EndMarker(kind_name == "COMMIT", coordinator_epoch(record.value))


def markers_in(rows: Iterable[Header], batches: Buffer, where: str) -> dict[int, EndMarker]:
    """Those of `rows`, which lie in `batches`, by their offsets; raises CorruptData."""
    found = {}
    for batch in filter(is_marker, rows):
        marker = parse_marker(batches[batch.position : batch.position + batch.size], where)
        if marker is not None:
            found[batch.base_offset] = marker
    return found


def build_marker(marker: EndMarker, timestamp: int, spec: BatchSpec) -> bytes:
    """A marker batch; `spec` says whose, where and in which leader epoch."""
    kind = COMMIT if marker.commit else ABORT
    record = NewRecord(
        _KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, marker.coordinator_epoch), timestamp
    )
    return build_batch([record], spec)


assert _RECORD.size == 17
