"""Which logs a view is about, and what rows of a log have in common.

Only looks: directories may be a live broker's, ours or Kafka's. What vanishes after it was listed,
because its topic was deleted, has no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from lapse.base.errors import ConfigError, LapseError, unreadable
from lapse.base.ids import TopicPartition
from lapse.lifecycle.outlook.rows import micros
from lapse.log.folders import list_partitions
from lapse.metadata.image import METADATA_FOLDER
from lapse.spark.scan.plan import has_segments
from lapse.spark.views.spec import KEYS, ViewOptions, ViewUnit

T = TypeVar("T")


def logs_of(options: ViewOptions) -> Iterator[tuple[Path, tuple[TopicPartition, ...]]]:
    """Each log directory with its requested logs, ascending.

    Keys of internal topics (`__…`) are given only where the topic is named. A directory given twice
    counts once. Raises StorageError where one is not there or cannot be listed, ConfigError where a
    topic that was named is in none of them.
    """
    found: dict[Path, set[TopicPartition]] = {}
    missing = set(options.topics)
    for text in options.paths:
        log_dir, partitions = _logs_in(Path(text).absolute())
        missing -= {p.topic for p in partitions}
        wanted = {p for p in partitions if _is_wanted(options, p)}
        found.setdefault(log_dir.resolve(), set()).update(wanted)
    if missing:
        where = ", ".join(options.paths)
        raise ConfigError(f"there is no topic {', '.join(sorted(missing))} in {where}")
    for log_dir, chosen in found.items():
        if chosen:
            yield log_dir, tuple(sorted(chosen))


def units_of(options: ViewOptions) -> list[ViewUnit]:
    """Units of so many logs each, of one log directory."""
    size = options.logs_per_unit
    return [
        ViewUnit(options, str(log_dir), tuple(str(p) for p in logs[n : n + size]))
        for log_dir, logs in logs_of(options)
        for n in range(0, len(logs), size)
    ]


def partitions_of(unit: ViewUnit) -> Iterator[TopicPartition]:
    """The unit's logs."""
    parsed = map(TopicPartition.parse, unit.logs)
    return (partition for partition in parsed if partition is not None)


def unless_gone(partition_dir: Path, read: Callable[[], T]) -> T | None:
    """What `read` says of a log; None where its directory has vanished meanwhile.

    Raises what `read` raises; StorageError where a file cannot be read.
    """
    try:
        return read()
    except LapseError:
        if partition_dir.is_dir():
            raise
    except OSError as e:
        if partition_dir.is_dir():
            raise unreadable(e, e.filename or partition_dir) from e
    return None


def of_log(unit: ViewUnit, partition: TopicPartition) -> dict[str, Any]:
    """The columns that every row of a log begins with."""
    return {
        "log_dir": unit.log_dir,
        "topic": partition.topic,
        "partition": partition.partition,
        "as_of": micros(unit.options.now_ms),
        "broker": None,
    }


def _logs_in(path: Path) -> tuple[Path, list[TopicPartition]]:
    """Of a log directory, or of one that is a partition's itself."""
    itself = TopicPartition.parse(path.name)
    if itself is not None and has_segments(path):
        return path.parent, [itself]
    return path, list_partitions(path)


def _is_wanted(options: ViewOptions, partition: TopicPartition) -> bool:
    if str(partition) == METADATA_FOLDER or not options.admits(partition):
        return False
    internal = partition.topic.startswith("__")
    return not (internal and options.view == KEYS and not options.topics)
