"""What an owner does for a log right after opening it, before the first append.

A crash may have cut a commit short: opening the log has put its files in order (W-5), and here the
commit's ledger and checkpoint are completed. Attempts that will never be committed are removed.
"""

from __future__ import annotations

from lapse.lifecycle.round.commit import CommitEnv, finish_commit
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.log.swap import sweep_attempts


def finish_rounds(
    log: PartitionLog, directory: LogDirectory, env: LogEnv, *, sweeps: bool = True
) -> str | None:
    """Complete or forget what was under way; returns the id of a round whose commit it finished.

    Without `sweeps` attempts stay: their round is still going on (`handover`).

    Raises StorageError.
    """

    def set_checkpoint(offset: int) -> None:
        directory.set_cleaner_offsets({log.partition: offset})

    one = CommitEnv(env.fs, env.clock, set_checkpoint, log.latest_ms)
    round_id = finish_commit(log.dir, one)
    if sweeps:
        sweep_attempts(env.fs, log.dir)
    return round_id
