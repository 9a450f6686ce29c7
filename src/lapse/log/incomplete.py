"""A copy of a log directory that was begun and is not whole: no owner takes it for a directory.

`log.export` makes copies (`lapse convert`, `lapse clean --to`); the mark is there till it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import StorageError, unreadable

# There while a copy is not whole; it names the source. Lapse opens no such directory.
INCOMPLETE = "lapse-incomplete-copy"
TO_V2, TO_KAFKA, CLEAN = "convert --to-v2", "convert --to-kafka", "clean"


@dataclass(frozen=True, slots=True)
class Begun:
    """A copy that is not whole.

    Attributes:
        source: the directory that is copied.
        how: the command of `lapse` that makes the copy.
    """

    source: str
    how: str = TO_V2

    def encode(self) -> bytes:
        how = b"" if self.how == TO_V2 else b"\0" + self.how.encode()
        return os.fsencode(self.source) + how


def begun_copy(log_dir: Path) -> Begun | None:
    """The copy that was begun here and is not whole; None where there is none."""
    try:
        source, _, how = (log_dir / INCOMPLETE).read_bytes().partition(b"\0")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise unreadable(e, log_dir / INCOMPLETE) from e
    return Begun(os.fsdecode(source), os.fsdecode(how) or TO_V2)


def refuse_incomplete(log_dir: Path) -> None:
    """Raise StorageError with what to do, where a copy was begun and is not whole."""
    begun = begun_copy(log_dir)
    if begun is not None:
        raise StorageError(
            f"{log_dir} is an incomplete copy of {begun.source}: let `lapse {begun.how} "
            f"{begun.source} --to {log_dir}` copy it again, or remove it"
        )
