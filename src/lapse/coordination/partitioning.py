"""Which partition of an internal topic looks after an id.

`__consumer_offsets` for a group, `__transaction_state` for a transactional id: clients are sent to
that partition's leader, so the number must be Java's to the bit.
"""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, -2³¹ to 2³¹ - 1: over UTF-16 code units, not over characters."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(name: str, partitions: int) -> int:
    """The partition, 0 to `partitions` - 1, whose leader coordinates the group or id `name`.

    The absolute value, as in Kafka's `Utils.abs`, with Java's lowest int, which has none, sent to
    0. Not the hash with its sign bit cleared, by which Kafka's partitioner goes: half of all names
    would lie elsewhere, and a directory written by Kafka would look empty to them.
    """
    value = java_hash(name)
    return 0 if value == -(1 << 31) else abs(value) % partitions
