"""Where a log starts, kept so that it survives anything: `<partition>/.lapse/log-start` (L11).

Kafka's `log-start-offset-checkpoint` speaks of every log of a directory and is written once a
minute, so a crash can undo a DeleteRecords that was answered (D-8). This small file is
of one log and is synced before the answer. What survives what:

- a crash of ours, or of the machine: opening takes the greater of this file and the checkpoint;
- a real Kafka after us: the checkpoint has it after a clean shutdown, and after a crash any
  moved up to one checkpoint interval earlier (`log.flush.start.offset.checkpoint.interval.ms`);
- a file that does not read well is as good as none: the checkpoint and the segments' names count.

Beside the offset it keeps which moves no round has followed yet: a record below the log start that
shares its segment with later ones stays in the file until a round takes it out, and the time for
that (`lapse.physical.delete.max.lag.ms`) must not begin anew with each restart.

Used by `PartitionLog`, and by `reader` to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from lapse.base.fs import Fs
from lapse.log.facts import StartMove
from lapse.log.manifest import Long, Versioned, checked, read_checked
from lapse.log.summary import FOLDER

LOG_START = "log-start"
MOVES_MAX = 16
_VERSION = 1


@dataclass(frozen=True, slots=True)
class KeptStart:
    """The content of the file.

    Attributes:
        offset: the log starts there, or above.
        trimmed_to: no file holds a record below this.
        moves: those into the midst of a segment, as yet unserved, ascending by both fields.
    """

    offset: int = 0
    trimmed_to: int = 0
    moves: tuple[StartMove, ...] = ()

    def unserved(self, first_base: int) -> tuple[StartMove, ...]:
        """Moves with records below them still in a file of a log whose first segment is there."""
        gone_to = max(first_base, self.trimmed_to)
        return tuple(move for move in self.moves if move.offset > gone_to)

    def moved(self, offset: int, now_ms: int, first_base: int) -> KeptStart:
        """After the log start moved up to `offset`."""
        moves = [*self.unserved(first_base), StartMove(offset, now_ms)]
        return replace(self, offset=max(offset, self.offset), moves=merged(moves))

    def emptied(self, offset: int, now_ms: int) -> KeptStart:
        """Of a log that has no record, and begins at `offset`.

        Its first one may come in a batch that begins below: a leader's, which no round has trimmed.
        """
        is_known = any(move.offset == offset for move in self.moves)
        if not offset or (is_known and not self.trimmed_to):
            return self
        return KeptStart(offset, moves=self.moves if is_known else (StartMove(offset, now_ms),))

    def trimmed(self, offset: int) -> KeptStart:
        """After a round took out what was below `offset`."""
        moves = tuple(move for move in self.moves if move.offset > offset)
        return replace(self, trimmed_to=max(offset, self.trimmed_to), moves=moves)


def merged(moves: Sequence[StartMove], most: int = MOVES_MAX) -> tuple[StartMove, ...]:
    """The same moves, with later ones listed as if made earlier where there are too many.

    The two closest in time become one, so that no deadline is ever put off.
    """
    kept = list(moves)
    while len(kept) > most:
        gaps = [after.moved_ms - before.moved_ms for before, after in pairwise(kept)]
        n = gaps.index(min(gaps))
        kept[n : n + 2] = [StartMove(kept[n + 1].offset, kept[n].moved_ms)]
    return tuple(kept)


class _Move(msgspec.Struct):
    offset: Long
    moved_ms: Long


class _File(Versioned):
    offset: Long
    trimmed_to: Long
    moves: list[_Move]


def start_path(partition_dir: Path) -> Path:
    """Where it is kept."""
    return partition_dir / FOLDER / LOG_START


def read_start(partition_dir: Path) -> KeptStart:
    """The kept start of a log; an empty one where there is no file, or not a sound one.

    Raises StorageError. The checksum is there because a log start past the end empties the log
    (D-16): one flipped digit must not do that.
    """
    file = read_checked(start_path(partition_dir), _File, _VERSION)
    if file is None:
        return KeptStart()
    moves = tuple(StartMove(move.offset, move.moved_ms) for move in file.moves)
    return KeptStart(file.offset, file.trimmed_to, moves)


def write_start(fs: Fs, partition_dir: Path, kept: KeptStart) -> None:
    """Keep it, durably; the folder must be there."""
    moves = [_Move(move.offset, move.moved_ms) for move in kept.moves]
    body = msgspec.json.encode(_File(_VERSION, kept.offset, kept.trimmed_to, moves))
    fs.replace_file(start_path(partition_dir), checked(body))


def taken_up(
    kept: KeptStart, log_start: int, bases: Sequence[int], now_ms: int, *, is_empty: bool
) -> KeptStart:
    """The kept start of a log that is being opened, made to fit the segments there.

    A log start within a segment that no kept move explains has another cause (a real
    Kafka, D-7, or a crash between its checkpoint and our file): it counts from now.
    """
    if is_empty:
        return kept.emptied(log_start, now_ms)
    holder = max((base for base in bases if base <= log_start), default=log_start)
    known = max([holder, kept.trimmed_to, *(move.offset for move in kept.moves)])
    if log_start <= known:
        return kept
    return kept.moved(log_start, now_ms, bases[0])
