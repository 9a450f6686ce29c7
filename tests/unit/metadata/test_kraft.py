"""Kafka's metadata log: what counts of it, and that nothing that does not read is left out."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.metadata.kraft import read_entries
from lapse.metadata.kraft_image import read_kafka_topics
from lapse.wire.schema.metadata_records import ConfigRecord, RemoveTopicRecord
from tests.support.metadata.kraft_log import (
    ABORT,
    BEGIN,
    BROKER,
    END,
    FOOTER,
    NO_OP,
    TOPIC,
    batch,
    config,
    control,
    segment,
    snapshot,
    topic,
)

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def retention(ms: int) -> ConfigRecord:
    return config(TOPIC, "a", "retention.ms", str(ms))


def overrides(log_dir: Path) -> dict[str, dict[str, str]]:
    found = read_kafka_topics(log_dir)
    assert found is not None
    return found.overrides


def test_a_directory_without_one_has_none(tmp_path: Path) -> None:
    assert read_entries(tmp_path) is None
    assert read_kafka_topics(tmp_path) is None


def test_the_last_word_counts(tmp_path: Path) -> None:
    segment(
        tmp_path, 0,
        batch(0, *topic("a", A), retention(1)),
        batch(3, retention(2), config(BROKER, "", "log.retention.ms", "5"), NO_OP),
    )  # fmt: skip
    segment(tmp_path, 6, batch(6, *topic("b", B)), batch(8, RemoveTopicRecord(topic_id=B)))
    assert overrides(tmp_path) == {"a": {"retention.ms": "2"}}
    found = read_kafka_topics(tmp_path)
    assert found is not None
    assert found.defaults == {"log.retention.ms": "5"}


def test_who_only_looks_passes_over_records_of_a_newer_kafka(tmp_path: Path) -> None:
    segment(tmp_path, 0, batch(0, *topic("a", A), 99, retention(1)))
    assert overrides(tmp_path) == {"a": {"retention.ms": "1"}}


def test_the_log_counts_from_the_end_of_the_newest_snapshot_on(tmp_path: Path) -> None:
    snapshot(tmp_path, 2, *topic("old", B), is_whole=False)  # which nobody looks at any more
    snapshot(tmp_path, 5, *topic("a", A), retention(4))
    segment(tmp_path, 0, b"whatever: all of it is in the snapshot")
    segment(tmp_path, 3, batch(3, retention(3), retention(4)), batch(5, retention(5)))
    assert overrides(tmp_path) == {"a": {"retention.ms": "5"}}
    segment(tmp_path, 3, batch(3, retention(3), NO_OP))
    assert overrides(tmp_path) == {"a": {"retention.ms": "4"}}


@pytest.mark.parametrize(("ending", "ms"), [((END,), "2"), ((ABORT,), "1"), ((), "1")])
def test_a_transaction_counts_whole_or_not_at_all(
    tmp_path: Path, ending: tuple[int, ...], ms: str
) -> None:
    segment(
        tmp_path, 0, batch(0, *topic("a", A), retention(1)),
        batch(3, BEGIN), batch(4, retention(2)), *(batch(5, one) for one in ending),
    )  # fmt: skip
    assert overrides(tmp_path) == {"a": {"retention.ms": ms}}
    if ending:
        with (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").open("ab") as file:
            file.write(batch(6, retention(3)))
        assert overrides(tmp_path) == {"a": {"retention.ms": "3"}}


# --- what does not read ---------------------------------------------------------------------------


def test_offsets_that_are_missing_are_an_error(tmp_path: Path) -> None:
    segment(tmp_path, 2, batch(2, NO_OP))
    with pytest.raises(CorruptData, match="offsets 0 to 1 are missing"):
        overrides(tmp_path)
    snapshot(tmp_path, 1, *topic("a", A))
    with pytest.raises(CorruptData, match="offsets 1 to 1 are missing"):
        overrides(tmp_path)
    snapshot(tmp_path, 2, *topic("a", A))
    assert set(overrides(tmp_path)) == {"a"}
    segment(tmp_path, 3, batch(4, NO_OP))
    with pytest.raises(CorruptData, match="offset 3 is not there"):
        overrides(tmp_path)


def test_a_snapshot_without_its_end_is_an_error(tmp_path: Path) -> None:
    path = snapshot(tmp_path, 2, *topic("a", A), is_whole=False)
    with pytest.raises(CorruptData, match="the snapshot has no end"):
        overrides(tmp_path)
    path.write_bytes(path.read_bytes() + control(3, FOOTER)[:-1])
    with pytest.raises(CorruptData, match="batch cut off"):
        overrides(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(CorruptData, match="the snapshot has no end"):
        overrides(tmp_path)


def test_what_a_kill_leaves_at_the_very_end_does_not_count(tmp_path: Path) -> None:
    whole, later = batch(0, *topic("a", A), retention(1)), batch(3, retention(2))
    path = segment(tmp_path, 0, whole)
    for length in range(len(later)):
        path.write_bytes(whole + later[:length])
        assert overrides(tmp_path) == {"a": {"retention.ms": "1"}}
    segment(tmp_path, 3, batch(3, NO_OP))
    with pytest.raises(CorruptData, match="batch cut off"):  # not the end
        overrides(tmp_path)


def test_no_flipped_bit_makes_an_older_setting_count(tmp_path: Path) -> None:
    """But in the length of the last batch: nobody can tell it from one that was cut off."""
    first, second = batch(0, *topic("a", A), retention(1)), batch(3, retention(2))
    whole = first + second + batch(4, NO_OP)
    path = segment(tmp_path, 0, whole)
    expected, errors = overrides(tmp_path), 0
    for bit in range(8 * len(first + second)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert overrides(tmp_path) == expected, f"bit {bit}"
        except CorruptData:
            errors += 1
    assert errors > 8 * len(first)


def test_no_flipped_bit_of_a_snapshot_makes_another_setting_count(tmp_path: Path) -> None:
    path = snapshot(tmp_path, 3, *topic("a", A), retention(1))
    whole, expected = path.read_bytes(), overrides(tmp_path)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with contextlib.suppress(CorruptData):
            assert overrides(tmp_path) == expected, f"bit {bit}"
