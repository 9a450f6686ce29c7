"""A file that keeps room for a start on a full disk: `.lapse-reserve`.

A running broker needs no room to empty a full disk, but one that starts does: it notes how it found
the directory, SQLite wants its log, indexes may have to be made anew. So a log directory has a file
that means nothing. It goes when the directory is opened and little is free, and comes back once
there is plenty.
"""

from __future__ import annotations

import contextlib
import logging
import random
from pathlib import Path

from lapse.base.errors import StorageError, lacks_room
from lapse.base.fs import storage_errors
from lapse.log.env import LogEnv

RESERVE = ".lapse-reserve"
RESERVE_BYTES = 8 << 20
NEEDED_BYTES = RESERVE_BYTES // 2  # that a start may want: with less it goes
PLENTY_BYTES = 32 * RESERVE_BYTES
_PIECE_BYTES = 64 << 10

logger = logging.getLogger(__name__)


def give_up_if_full(env: LogEnv, log_dir: Path) -> None:
    """Make room, durably, if a start may want more than there is. Raises StorageError."""
    path = log_dir / RESERVE
    with storage_errors(log_dir, "looking at"):
        if not path.exists() or env.free_bytes(log_dir) >= NEEDED_BYTES:
            return
    logger.warning("%s: its disk is full; it opens in the room of %s", log_dir, RESERVE)
    env.fs.unlink(path)
    env.fs.fsync_dir(log_dir)  # only then is the room to be had


def set_aside(env: LogEnv, log_dir: Path) -> None:
    """Keep room for a start, if there is plenty. Raises StorageError, not for want of room."""
    path = log_dir / RESERVE
    with storage_errors(log_dir, "looking at"):
        if _is_whole(path) or env.free_bytes(log_dir) < PLENTY_BYTES:
            return
    try:
        env.fs.write_file(path, _content())
        env.fs.fsync_file(path)
    except StorageError as e:
        with contextlib.suppress(StorageError):
            env.fs.unlink(path)
        if not lacks_room(e):
            raise


def is_reserve(path: Path) -> bool:
    """Whether a file is that, and nothing else, byte for byte; not where it cannot be read."""
    try:
        return path.name == RESERVE and path.read_bytes() == _content()
    except OSError:
        return False


def _content() -> bytes:
    """Always the same, and nothing that a file system packs smaller.

    In pieces: all at once would keep every other thread, the event loop's too, waiting for 30 ms.
    """
    made = random.Random(0)
    return b"".join(made.randbytes(_PIECE_BYTES) for _ in range(RESERVE_BYTES // _PIECE_BYTES))


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size == RESERVE_BYTES
    except OSError:
        return False
