"""Which partition of an internal topic an id belongs to: Java's hash, Kafka's absolute value."""

from __future__ import annotations

import pytest

from lapse.coordination.partitioning import java_hash, partition_for


# Values of Java's String.hashCode; the last is its lowest int.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("Hello, World!", 1498789909),
        ("Aa", 2112),
        ("BB", 2112),
        ("é", 233),
        ("транзакция", -461615033),
        ("日本語", 25921943),
        ("\U0001f600", 1772899),  # two UTF-16 units, D83D DE00
        ("\ud83d", 55357),  # a lone surrogate, which Java's strings can hold
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == slow_hash(text) == expected


def slow_hash(text: str) -> int:
    """As the JDK's documentation has it: the sum of unit times 31 to its distance from the end."""
    data = text.encode("utf-16-le", "surrogatepass")
    units = [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    return (total + (1 << 31)) % (1 << 32) - (1 << 31)


# Where real Kafka 4.3.1, with four partitions a topic, had the state of these.
BY_KAFKA = {
    "gck848": 3,
    "g-classic": 0,
    "txn-delete-lz4-A": 1,
    "txn-delete-lz4-E": 1,
    "rec-no-index": 1,
    "rec-no-snapshot": 1,
    "librd-txn-lz4": 3,
    "txn-compact-none-A": 3,
    "rec-garbage-tail": 3,
    "rec-untouched": 0,
    "txn-compact-lz4-OPEN": 2,
    "tkp": 1,
}


def test_partitions_are_kafkas() -> None:
    assert {name: partition_for(name, 4) for name in BY_KAFKA} == BY_KAFKA
    cleared = {name: (java_hash(name) & 0x7FFFFFFF) % 4 for name in BY_KAFKA}
    assert cleared != BY_KAFKA  # so a hash with the sign bit cleared would be seen


def test_partition_of_a_name_that_is_not_ascii() -> None:
    assert partition_for("транзакция", 50) == 461615033 % 50 == 33
    assert partition_for("\U0001f600", 50) == 1772899 % 50


def test_the_lowest_hash_goes_to_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert (1 << 31) % 50 != 0  # which is where the absolute value would send it
