"""Which errors of a log are its disk's, so that no log there can be relied on any more."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from lapse.base.errors import LACKS, StorageError
from lapse.log.lock import LOCK

# A full disk can be read from and emptied; without an errno Python says it, not the system.
_NOT_OF_THE_DISK = LACKS | {errno.EBADF, None}
_NAMES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})


def disk_failed(error: BaseException, log_dir: Path) -> bool:
    """Whether an error of a log means that the disk under `log_dir` cannot be relied on any more.

    A missing file concerns its log only, unless the whole directory is missing.
    """
    cause: BaseException | None = error
    is_storage = False
    while cause is not None:
        if isinstance(cause, OSError):
            if cause.errno in _NAMES:
                return not os.path.exists(log_dir / LOCK)
            return cause.errno not in _NOT_OF_THE_DISK
        if isinstance(cause, StorageError):
            if not cause.is_of_disk:
                return False
            is_storage = True
        cause = cause.__cause__
    return is_storage
