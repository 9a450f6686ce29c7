"""The result of looking through one file: small frozen values that are sent as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lapse.lifecycle.erase.places import FileState

SPOTS_MAX = 20  # places reported of a file; the others are only counted
REGIONS_MAX = 200

# What a file turned out to be.
BATCHES, ROWS, RAW, KEYLESS = "batches", "rows", "raw", "no keys"


Epochs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AuditUnit:
    """Bytes of one file that a task looks through.

    Attributes:
        replica: directory of the replica.
        path: of the file, relative to the replica.
        start: where a batch begins; 0, or the end of what was looked through before.
        end: None: the end of the file when it is read.
        below: records with a value from this offset on may stay; None: as the search says.
        below_epoch: whose leader's log ended there: batches of an earlier epoch did not come later,
            and all of `later_epochs` did. -1: nobody says it, or a batch does not say its own.
        later_epochs: (epoch, its first offset) as the log's own file has them: a batch's checksum
            leaves its epoch out, so below the bound only one that is noted there is believed.
        by_epoch: a batch that does not say its epoch did not come later.
        rows: it is a table's (`rows`).
        listed: of an object in a store, or a file that is not seen from here: as it was listed.
    """

    replica: str
    path: str
    start: int = 0
    end: int | None = None
    below: int | None = None
    below_epoch: int = -1
    later_epochs: Epochs = ()
    by_epoch: bool = False
    rows: bool = False
    listed: FileState | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """A record that was found.

    Attributes:
        target: number of the key, or of the offset (offsets are numbered after the keys).
        position: byte of the file where its batch begins; 0 in a table's file.
        damaged: the batch cannot be read as a whole; a consumer does not get the record.
    """

    target: int
    offset: int
    position: int
    tombstone: bool = False
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class RawSpot:
    """The bytes of a key where no record can be read.

    Attributes:
        position: byte of the file; inside an inflated batch, the byte where that batch begins.
    """

    target: int
    position: int
    inflated: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes start..end-1 of a file that are not sound batches; they were searched raw.

    Attributes:
        opaque: they may be compressed: the absence of the key's bytes proves nothing.
        zeros: there is nothing but zeros.
    """

    start: int
    end: int
    reason: str
    opaque: bool = False
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes start..end-1 as they were read.

    Attributes:
        sha256: of these bytes, hexadecimal; None in reports of the first format.
        crc32c: what those reports have instead; other bytes with the same CRC are easy to make.
    """

    start: int
    end: int
    sha256: str | None = None
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """How often a target occurs in a file.

    Attributes:
        records: with a value. tombstones: without.
        beyond: either, at or above the bound of the search.
        raw: places of the key's bytes where no record can be read.
        last_value: highest offset of a record with a value, beyond the bound too; -1: none.
        last_tombstone: of a tombstone that is in no transaction. Neither counts damaged batches,
            nor those that a replica has alone.
        last_later: as `last_value`, of what came later by its epoch, wherever it is.
    """

    target: int
    records: int = 0
    tombstones: int = 0
    beyond: int = 0
    raw: int = 0
    last_value: int = -1
    last_tombstone: int = -1
    last_later: int = -1

    @property
    def is_any(self) -> bool:
        """Whether there is anything of the target."""
        return bool(self.records or self.tombstones or self.beyond or self.raw)

    def __add__(self, other: Count) -> Count:
        return Count(
            self.target,
            self.records + other.records,
            self.tombstones + other.tombstones,
            self.beyond + other.beyond,
            self.raw + other.raw,
            max(self.last_value, other.last_value),
            max(self.last_tombstone, other.last_tombstone),
            max(self.last_later, other.last_later),
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a file, or in some of its bytes.

    Attributes:
        path: relative to the replica's directory; folder: the partition's directory, or empty.
        kind: BATCHES, ROWS, RAW or KEYLESS; what: why no key can be in it.
        problem: why it could not be looked through, or not to its end.
        vanished: there was no such file any more.
        inflated_bytes: of batches that were compressed.
        control: control batches, which have no user keys.
        counts: by target; only what is not zero.
        spots, raw_spots: the first SPOTS_MAX.
        regions: the first REGIONS_MAX; regions_more: how many there are beyond those.
    """

    path: str
    folder: str = ""
    state: FileState | None = None
    kind: str = RAW
    what: str | None = None
    problem: str | None = None
    vanished: bool = False
    pieces: tuple[Piece, ...] = ()
    batches: int = 0
    records: int = 0
    control: int = 0
    inflated_bytes: int = 0
    counts: tuple[Count, ...] = ()
    spots: tuple[Spot, ...] = ()
    raw_spots: tuple[RawSpot, ...] = ()
    regions: tuple[Region, ...] = ()
    regions_more: int = 0

    @property
    def bytes_read(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    @property
    def end(self) -> int:
        """How far the file was looked through."""
        return max((piece.end for piece in self.pieces), default=0)


def joined(before: Findings, after: Findings) -> Findings:
    """The findings of two consecutive byte ranges of one file, joined."""
    kinds = {before.kind, after.kind}
    regions = before.regions + after.regions
    counts = by_target(before.counts + after.counts)
    return Findings(
        path=after.path,
        folder=after.folder,
        state=after.state,
        kind=BATCHES if BATCHES in kinds else after.kind,
        what=after.what,
        problem=before.problem or after.problem,
        vanished=after.vanished,
        pieces=before.pieces + after.pieces,
        batches=before.batches + after.batches,
        records=before.records + after.records,
        control=before.control + after.control,
        inflated_bytes=before.inflated_bytes + after.inflated_bytes,
        counts=tuple(counts[target] for target in sorted(counts)),
        spots=(before.spots + after.spots)[:SPOTS_MAX],
        raw_spots=(before.raw_spots + after.raw_spots)[:SPOTS_MAX],
        regions=regions[:REGIONS_MAX],
        regions_more=before.regions_more + after.regions_more + len(regions[REGIONS_MAX:]),
    )


def by_target(counts: Iterable[Count]) -> dict[int, Count]:
    """The counts of each target, summed."""
    summed: dict[int, Count] = {}
    for c in counts:
        summed[c.target] = summed.get(c.target, Count(c.target)) + c
    return summed
