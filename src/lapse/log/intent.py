"""What a commit under way replaces, read from its intent (`lifecycle.round.commit` writes it).

Of the receipt that an intent is, this is the part that recovery of a log's files needs: which old
segments each new one takes the place of. File names do not show it: where a group's last records
are superseded its new segment ends before its last old ones begin, and Kafka's rule of W-5 leaves
those standing.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.decoding import from_json
from lapse.base.fs import Fs, storage_errors
from lapse.log.summary import FOLDER

INTENT = "intent"


class ReplacedGroup(msgspec.Struct, frozen=True):
    """One group: the base offset of its new segment, and the old ones with their bytes.

    `old_sizes` is empty in an intent of a version that did not note them.
    """

    base_offset: int
    old_bases: tuple[int, ...]
    old_sizes: tuple[int, ...] = ()

    def replaces(self, base_offset: int, size: int) -> bool:
        """Whether a segment of that many bytes is one of the old ones."""
        if base_offset not in self.old_bases:
            return False
        if len(self.old_sizes) != len(self.old_bases):
            return not self.old_sizes
        return self.old_sizes[self.old_bases.index(base_offset)] == size


class _Intent(msgspec.Struct, frozen=True):
    groups: tuple[ReplacedGroup, ...]


class _Covered(msgspec.Struct, frozen=True):
    """Below it the round has seen everything; -1: it says nothing of that."""

    end_offset: int = -1


def lower(fs: Fs, partition_dir: Path, end_offset: int) -> None:
    """Have a commit that was cut short say nothing of offsets from `end_offset` on. Durable.

    To be called before the log is cut there: what comes in their place no round has seen. Nothing
    where no commit was cut short, or its intent is not whole. Raises StorageError.
    """
    path = partition_dir / FOLDER / INTENT
    try:
        with storage_errors(path, "reading"), suppress(FileNotFoundError):
            data = path.read_bytes()
            if from_json(data, _Covered).end_offset > end_offset:
                said = {**from_json(data, dict[str, Any]), "end_offset": end_offset}
                fs.replace_file(path, msgspec.json.encode(said))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return


def replaced_groups(partition_dir: Path) -> tuple[ReplacedGroup, ...]:
    """Groups of the commit under way; none where there was none, or its intent is not whole."""
    try:
        data = (partition_dir / FOLDER / INTENT).read_bytes()
        return from_json(data, _Intent).groups
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return ()
