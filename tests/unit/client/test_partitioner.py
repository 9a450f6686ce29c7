"""Keys to partitions, by the values that Kafka's own tests have for its hash."""

from __future__ import annotations

import pytest

from lapse.client.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_a_partition_goes_by_the_hash_without_its_sign() -> None:
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert {partition_of(b"%d" % n, 5) for n in range(100)} == set(range(5))
