"""Why a log takes no writes: what operators are told of the appends that failed."""

from __future__ import annotations

import errno
from pathlib import Path

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.log.core import Refusal
from tests.support.log.logs import NOW, append, batch, open_log, refusal


class Full(RealFs):
    """A disk without room for appends while it is full."""

    full = False

    def open_append(self, path: Path) -> AppendFile:
        file = super().open_append(path)
        write = file.write

        def limited(*buffers: Buffer) -> None:
            if self.full:
                raise StorageError("no room") from OSError(errno.ENOSPC, "no room")
            write(*buffers)

        file.write = limited  # type: ignore[method-assign]
        return file


def test_appends_that_fail_are_told_until_one_does_not(tmp_path: Path) -> None:
    """Since the first of them, and what the latest one was about."""
    fs = Full()
    log = open_log(tmp_path, fs=fs)
    small, large = batch(), batch(size=90)
    append(log, small)
    assert log.refusal is None
    fs.full = True
    assert refusal(lambda: append(log, small)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.refusal == Refusal(NOW, "no room", len(small), errno.ENOSPC)
    assert refusal(lambda: append(log, large, now_ms=NOW + 7)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.refusal == Refusal(NOW, "no room", len(large), errno.ENOSPC)
    fs.full = False
    append(log, small)
    assert log.refusal is None
