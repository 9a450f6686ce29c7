"""How large the small plan's map gets: the sizes of its table as it grows, and their memory.

`offset_map` makes its tables by these figures, `choice` estimates a round by them, and `plan`
reports them. A growing table is filled from the one before it, so for a while there are both. It
doubles, but never beyond what the keys that it may hold need; and one of the last doublings is
left out, so that next to the largest table there is at most one of half its size.

Pure functions.
"""

from __future__ import annotations

from lapse.kernels.offset_map import FILLED, FILLED_OF

SLOT_BYTES = 16
SLOTS_MIN = 1 << 14


def room(n_slots: int) -> int:
    """Keys that a table of `n_slots` slots takes before it grows."""
    return n_slots * FILLED // FILLED_OF


def slots_max(entries_max: int) -> int:
    """Slots of the largest table of a map that may hold `entries_max` keys."""
    return max(-(-entries_max * FILLED_OF // FILLED), SLOTS_MIN)


def grown(n_slots: int, entries: int, entries_max: int) -> int:
    """Slots of the table that follows one of `n_slots`, with room for `entries` keys.

    `entries` may be more than `entries_max`, which the map never holds.
    """
    largest = slots_max(entries_max)
    while room(n_slots) < min(entries, entries_max):
        n_slots = largest if n_slots * 4 > largest else n_slots * 2
    return n_slots


def peak_bytes(entries: int, entries_max: int) -> int:
    """Peak memory of a map that comes to hold `entries` keys and may hold `entries_max`.

    The peak is while the last table is filled. The probes' filter comes later, when there is only
    one table, and takes two bytes a key. A batch with more records than there is room for makes the
    table grow before it is known how many of their keys are new: the map may then take the memory
    of that many more keys, but never more than `peak_bytes(entries_max, entries_max)`.
    """
    n_slots, before = SLOTS_MIN, 0
    while room(n_slots) < min(entries, entries_max):
        before, n_slots = n_slots, grown(n_slots, room(n_slots) + 1, entries_max)
    return (before + n_slots) * SLOT_BYTES


def entries_within(n_bytes: int) -> int:
    """The most keys that a map may hold within `n_bytes` of memory.

    At least as many as the first table has room for, which every map has.
    """
    n_slots, before, largest = n_bytes // SLOT_BYTES, SLOTS_MIN, SLOTS_MIN
    while n_slots - before > largest:  # the last table but one is `before`
        largest = min(n_slots - before, before * 4 - 1)
        before *= 2
    return room(largest)
