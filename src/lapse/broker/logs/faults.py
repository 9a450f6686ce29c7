"""What one partition's part of a request raised, as an error code: it must not cost the others.

Requests name many partitions. A connection that ended over one of them would leave its neighbours
unanswered, and what was done for those would be done again: batches appended twice, for one.
"""

from __future__ import annotations

import logging

from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.partitions import Partitions

_log = logging.getLogger(__name__)


def code_of(
    partitions: Partitions, where: TopicPartition | None, doing: str, error: Exception
) -> ErrorCode:
    """The error code that a client gets for one partition; `doing` is for the broker's log.

    A failed disk takes its log directory offline. An unexpected error is UNKNOWN_SERVER_ERROR, and
    is logged with its traceback.
    """
    if where is not None:
        partitions.report(where, error)
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, StorageError | CorruptData | OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    _log.error("%s: %s failed", where, doing, exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
