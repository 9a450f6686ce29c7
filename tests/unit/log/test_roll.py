"""The draws by which segments of one age, or one size, do not all roll at once (L7, L19)."""

from __future__ import annotations

from pathlib import Path

from lapse.log.partition_log import PartitionLog
from lapse.log.roll import full_bytes, jitter_of
from tests.support.log.logs import NOW, TP, append, batch, config, open_log

MIB = 1 << 20
BATCH_BYTES = 5_000


def test_draws_are_spread_over_all_of_0_to_1() -> None:
    draws = [jitter_of(TP, base_offset) for base_offset in range(200)]
    assert 0 <= min(draws) < 0.05
    assert 0.95 < max(draws) < 1


def test_a_segment_draws_the_same_again() -> None:
    assert jitter_of(TP, 7) == jitter_of(TP, 7) != jitter_of(TP._replace(partition=4), 7)


def test_l19_a_segment_is_full_at_31_of_32_parts_or_later() -> None:
    assert full_bytes(MIB, 0.0) == MIB
    assert full_bytes(MIB, 0.5) == MIB - MIB // 64
    assert MIB - MIB // 32 < full_bytes(MIB, 1 - 1 / (1 << 32)) < MIB - MIB // 32 + 2


def test_what_is_smaller_than_kafka_allows_is_filled() -> None:
    """`internal.segment.bytes` is for tests, which count batches."""
    assert full_bytes(MIB - 1, 0.99) == MIB - 1


def sealed_sizes(log: PartitionLog, batches: int) -> list[int]:
    for n in range(batches):
        append(log, batch(name=f"{n:03d}", size=BATCH_BYTES // 3), now_ms=NOW + n)
    return [segment.size for segment in log.segments[:-1]]


def test_l19_partitions_that_are_filled_evenly_roll_one_by_one(tmp_path: Path) -> None:
    """Kafka closes all of them with the same batch; a roll holds up who writes."""
    folders = [tmp_path / f"t-{n}" for n in range(6)]
    logs = [open_log(folder, config(internal_segment_bytes=2 * MIB)) for folder in folders]
    sizes = [sealed_sizes(log, 900) for log in logs]
    assert len({tuple(each) for each in sizes}) == len(logs)
    least = 2 * MIB - 2 * MIB // 32 - 2 * BATCH_BYTES
    assert all(len(each) == 2 and least < min(each) <= max(each) <= 2 * MIB for each in sizes)


def test_a_setting_that_changes_is_in_force_with_the_next_append(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", config(internal_segment_bytes=4 * MIB))
    assert sealed_sizes(log, 300) == []  # 1.5 MB
    log.update_config(config(internal_segment_bytes=MIB))
    append(log, batch(name="last"), now_ms=NOW)
    assert len(log.segments) == 2
