"""Where the log of a new leader starts: never below where that of an earlier one did (KIP-107).

A replica that was away may lead by an unclean election. What was deleted meanwhile is in its log
still, or its log ends below that. Blocking; called before the log serves anybody in its epoch.
"""

from __future__ import annotations

import logging

from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog

_log = logging.getLogger(__name__)


def hold(log: PartitionLog, directory: LogDirectory, log_start: int) -> None:
    """Have a log start there at least, durably. Raises KAFKA_STORAGE_ERROR.

    What is below was committed once, so it is below the high watermark; where the log does not
    reach so far nothing in it is of use, and what comes next has offsets from there on.
    """
    if log_start <= log.log_start_offset:
        return
    _log.warning(
        "%s: leads, and begins at %d instead of %d: what is below was deleted while it was away",
        log.partition, log_start, log.log_start_offset,
    )  # fmt: skip
    if log_start > log.log_end_offset:
        directory.restart_log(log, log_start)
    elif log_start > log.high_watermark:
        log.high_watermark = log_start
    log.advance_log_start(log_start)
