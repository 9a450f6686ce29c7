"""The small plan or the split plan: decided from a task's memory and the size of the log.

The small plan's one task holds at once the map of all keys that are dirty, a bit or two for each
record, and the headers of every segment of the round. Where that is more than the task may use, the
round is split: no task then holds more than a hash range's keys, or one group of segments.

Pure functions. The figures of a split follow from the task's memory too; there is no limit on keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.lifecycle.round.map_size import entries_within, peak_bytes

SLOT_BYTES = 16  # of a merge's table of keys; an entry of a run is as long
BATCH_BYTES = 136  # header fields, places and verdicts of a batch in memory
BITMAP_BYTES_A_RECORD = 0.5  # two bitmaps, and once more while they are cut up by segment

# Shares of a task's memory: a scan holds its entries twice, in the order of the log and in that of
# the ranges; a merge holds a table and one part of a run. The rest is for headers and buffers.
_CHUNK_SHARE = 4
_TABLE_SHARE = 2
_CHUNK_ENTRIES_MAX = 1 << 24
_ENTRIES_MIN = 1 << 12

_HOST_SHARE = 4  # a fourth of the machine is left for Java, page cache and other processes

_TABLE_FILL = 0.5
_UNSURE = 1.3  # a sketch is 3 % off; ranges are a little uneven
_CACHED_KEYS = 1 << 18  # a table of this many stays in the CPU cache: a probe is no DRAM miss
_CACHED_RANGES_MAX = 512  # beyond that many, parts become too short to be read at full speed
_RANGES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Load:
    """The size of a round's map stage.

    Attributes:
        records: records in dirty segments, an upper bound.
        batches: batches in all segments of the round.
        keys: distinct dirty keys, by sketches; None if a segment has no sketch.
    """

    records: int
    batches: int
    keys: int | None = None

    @property
    def keys_max(self) -> int:
        """Dirty keys, as precisely as is known."""
        return self.records if self.keys is None else min(self.keys, self.records)


@dataclass(frozen=True, slots=True)
class Split:
    """The figures of a split plan.

    Attributes:
        ranges: hash ranges.
        keys_a_range: expected keys; a range with more is processed in more than one pass.
        chunk_entries: entries that a scan partitions at a time.
        slots_max: slots that a merge's table may have.
    """

    ranges: int
    keys_a_range: int
    chunk_entries: int
    slots_max: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan chosen, and why in words.

    Attributes:
        split: None for the small plan.
        spare_bytes: what the small plan leaves of the task's memory if no two records share a key.
    """

    why: str
    split: Split | None = None
    spare_bytes: int = 0


def task_memory(total_bytes: int, tasks: int, host_bytes: int | None) -> int:
    """Bytes that each of `tasks` concurrent tasks may use, out of `total_bytes` for all.

    `host_bytes`: memory of the machine that all tasks run on, which bounds the total; None if they
    run on several machines.
    """
    if host_bytes is not None:
        total_bytes = min(total_bytes, host_bytes - host_bytes // _HOST_SHARE)
    return max(total_bytes // max(tasks, 1), 1)


def choose(load: Load, memory_bytes: int) -> Choice:
    """The plan for a round whose tasks may use `memory_bytes` each."""
    keys = f"{load.records} keys at most" if load.keys is None else f"about {load.keys_max} keys"
    entries = load.keys_max + 1  # a map that is full ends its round at the next record (M-5)
    needed = peak_bytes(entries, entries) + _beside_map(load)
    reason = (
        f"{keys} of {load.records} dirty records, in {load.batches} batches in all, need "
        f"{_text(needed)}; a task has {_text(memory_bytes)}"
    )
    if needed <= memory_bytes or not load.records:
        most = peak_bytes(load.records + 1, load.records + 1) + _beside_map(load)
        return Choice(reason, spare_bytes=max(memory_bytes - most, 0))
    split = split_for(load.keys_max, memory_bytes)
    return Choice(f"{reason}: {split.ranges} hash ranges of about {split.keys_a_range} keys", split)


def small_map_entries(load: Load, memory_bytes: int) -> int:
    """Keys that the small plan's map may hold in a task of `memory_bytes`, next to its other data.

    If the small plan was chosen, that is more than the keys expected.
    """
    return entries_within(memory_bytes - _beside_map(load))


def split_for(keys: int, memory_bytes: int) -> Split:
    """The figures for about `keys` keys in tasks that may use `memory_bytes` each."""
    slots_max = max(memory_bytes // _TABLE_SHARE // SLOT_BYTES, _ENTRIES_MIN)
    chunk = memory_bytes // _CHUNK_SHARE // SLOT_BYTES
    needed = -(-int(keys * _UNSURE) // int(slots_max * _TABLE_FILL))
    cached = min(-(-keys // _CACHED_KEYS), _CACHED_RANGES_MAX)
    ranges = min(max(needed, cached, 1), _RANGES_MAX)
    return Split(
        ranges=ranges,
        keys_a_range=-(-keys // ranges),
        chunk_entries=min(max(chunk, _ENTRIES_MIN), _CHUNK_ENTRIES_MAX),
        slots_max=slots_max,
    )


def _beside_map(load: Load) -> int:
    """Bytes that the small plan's task needs in addition to the map."""
    return load.batches * BATCH_BYTES + int(load.records * BITMAP_BYTES_A_RECORD)


def _text(n_bytes: int) -> str:
    unit, shift = ("MiB", 20) if n_bytes >= 1 << 20 else ("KiB", 10)
    return f"{n_bytes / (1 << shift):.1f} {unit}"
