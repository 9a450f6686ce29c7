"""Which logs a view is about; directories that are not there, or vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, LapseError, StorageError
from lapse.base.ids import TopicPartition
from lapse.spark.views.logs import logs_of, of_log, partitions_of, units_of, unless_gone
from lapse.spark.views.spec import KEYS, SEGMENTS, ViewOptions


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / f"{0:020d}.log").touch()
    return root


def asked(*paths: Path, view: str = SEGMENTS, topics: tuple[str, ...] = ()) -> list[str]:
    options = ViewOptions(view, tuple(map(str, paths)), 0, topics=topics)
    return [f"{log_dir.name}/{p}" for log_dir, logs in logs_of(options) for p in logs]


def test_every_log_of_every_directory_replicas_too(tmp_path: Path) -> None:
    one = make(
        tmp_path / "one", "a-0", "b-10", "b-9", "__cluster_metadata-0", "junk", "c-0.x-delete"
    )
    two = make(tmp_path / "two", "a-0")
    assert asked(one, two) == ["one/a-0", "one/b-9", "one/b-10", "two/a-0"]
    assert asked(one, one / "b-9", tmp_path / "two" / ".." / "one") == asked(one)
    assert asked(one / "b-9") == ["one/b-9"]
    assert asked(one, two, topics=("a",)) == ["one/a-0", "two/a-0"]


def test_keys_of_internal_topics_only_by_name(tmp_path: Path) -> None:
    root = make(tmp_path / "d", "a-0", "__consumer_offsets-1")
    assert asked(root) == ["d/__consumer_offsets-1", "d/a-0"]
    assert asked(root, view=KEYS) == ["d/a-0"]
    named = ("__consumer_offsets",)
    assert asked(root, view=KEYS, topics=named) == ["d/__consumer_offsets-1"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    for name in ("nothing", "nothing-0"):
        with pytest.raises(StorageError, match=f"listing .*{name}"):
            asked(tmp_path / name)


def test_a_topic_that_was_named_and_is_nowhere(tmp_path: Path) -> None:
    """Of two directories either may have it."""
    one, two = make(tmp_path / "one", "a-0"), make(tmp_path / "two", "b-0")

    def named(*topics: str) -> ViewOptions:
        return ViewOptions(SEGMENTS, (str(one), str(two)), 5, topics=topics)

    assert [unit.logs for unit in units_of(named("a", "b"))] == [("a-0",), ("b-0",)]
    with pytest.raises(ConfigError, match=r"there is no topic c, d in .*one, .*two"):
        units_of(named("d", "a", "c"))


def test_units_of_so_many_logs(tmp_path: Path) -> None:
    root = make(tmp_path / "d", *(f"t-{n}" for n in range(5)))
    units = units_of(ViewOptions(SEGMENTS, (str(root),), 5, logs_per_unit=2))
    assert [unit.logs for unit in units] == [("t-0", "t-1"), ("t-2", "t-3"), ("t-4",)]
    assert [str(p) for p in partitions_of(units[1])] == ["t-2", "t-3"]
    row = of_log(units[0], TopicPartition("t", 1))
    assert row == {
        "log_dir": str(root), "topic": "t", "partition": 1, "as_of": 5000, "broker": None
    }  # fmt: skip


def test_a_log_that_vanished_is_none_and_one_that_is_there_an_error(tmp_path: Path) -> None:
    def fail(error: Exception) -> None:
        raise error

    gone = FileNotFoundError(2, "No such file", "f")
    for error in (LapseError("x"), gone):
        assert unless_gone(tmp_path / "t-0", lambda error=error: fail(error)) is None  # type: ignore[misc]
        with pytest.raises(LapseError):
            unless_gone(tmp_path, lambda error=error: fail(error))  # type: ignore[misc]
    with pytest.raises(StorageError, match="reading f: No such file"):
        unless_gone(tmp_path, lambda: fail(gone))
    assert unless_gone(tmp_path, lambda: 7) == 7
