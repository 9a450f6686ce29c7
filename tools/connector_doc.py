"""Writes docs/kafka-connector.md, `format("lapse")` beside Spark's Kafka connector, or checks it.

What the connector has is `CONNECTOR`; what we make of an option is asked of `scan.options`: it does
its work, or it is taken with a warning, or it is unknown, which a unit test forbids.

`.venv/bin/python -m tools.connector_doc` writes the page; with `--check` it writes nothing and
exits 1 if the page is not what it would write. A unit test checks the same.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lapse.spark.scan.options import IN_WRITING, OPTIONS, REFUSED, WITHOUT_EFFECT
from tools.pages import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "kafka-connector.md"
SUITES = ROOT / "tests" / "spark" / "connector_suites.toml"
COMMAND = ".venv/bin/python -m tools.connector_doc"
BATCH, STREAM, READING, WRITING = "batch", "stream", "reading", "writing"

_HEAD = f"""\
# Beside Spark's Kafka connector

<!-- Made by `{COMMAND}` from tools/connector_doc.py and src/lapse/spark/scan/options.py. Change
the tables there, not this page. -->

`format("lapse")` takes every option of `format("kafka")` (Spark 4.2): most queries need the other
name and nothing else. Options are spelled as there, case aside. What is unknown is refused, where
the connector ignores it; so is a setting of Kafka's clients that is nearly one of those in use.
[The data source](data-source.md) says all that an option means.

| option | of | default there | here |
|---|---|---|---|
"""
_OURS = """
## What the connector has not

| option | what it is |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of Spark's connector.

    Attributes:
        of: what it is for. default: there, as its documentation has it.
        differs: what is other here, empty where nothing is.
    """

    name: str
    of: str
    default: str = "–"
    differs: str = ""


CONNECTOR = (
    Option("kafka.bootstrap.servers", f"{READING}, {WRITING}", differs="or `path`: files"),
    Option("assign", READING),
    Option("subscribe", READING, differs="without one of the three: all topics but internal ones"),
    Option("subscribePattern", READING, differs="internal topics are only read by their names"),
    Option("startingOffsets", READING, "`latest` of a stream, `earliest` of a batch"),
    Option("endingOffsets", BATCH, "`latest`"),
    Option("startingTimestamp", READING),
    Option("endingTimestamp", BATCH),
    Option("startingOffsetsByTimestamp", READING),
    Option("endingOffsetsByTimestamp", BATCH),
    Option("startingOffsetsByTimestampStrategy", READING, "`error`"),
    Option("failOnDataLoss", READING, "`true`", "compaction is no data loss"),
    Option("maxOffsetsPerTrigger", STREAM),
    Option("minOffsetsPerTrigger", STREAM),
    Option("maxTriggerDelay", STREAM, "`15m`"),
    Option("minPartitions", READING, differs="small partitions share a task without it"),
    Option("maxRecordsPerPartition", READING),
    Option("includeHeaders", READING, "`false`"),
    Option("includeHeaders", WRITING, "`false`"),
    Option("topic", WRITING, differs="in reading: `subscribe`"),
    Option("groupIdPrefix", READING, "`spark-kafka-source`"),
    Option("kafka.group.id", READING),
    Option("kafkaConsumer.pollTimeoutMs", READING, "`120000`"),
    Option("fetchOffset.numRetries", READING, "`3`"),
    Option("fetchOffset.retryIntervalMs", READING, "`10`"),
    Option("kafka.*", f"{READING}, {WRITING}", differs="one that says nothing here is ignored"),
)
COLUMNS = "key, value, topic, partition, offset, timestamp, timestampType, headers"


def page() -> str:
    """The whole page."""
    theirs = {option.name for option in CONNECTOR}
    ours = (
        f"| `{name}` | {said.replace('|', chr(92) + '|')} |\n"
        for name, said in OPTIONS.items()
        if name not in theirs
    )
    return _HEAD + "".join(_rows()) + _refused() + _OURS + "".join(ours) + _columns() + _suites()


def _rows() -> Iterator[str]:
    for option in CONNECTOR:
        yield f"| `{option.name}` | {option.of} | {option.default} | {standing(option)} |\n"


def standing(option: Option) -> str:
    """What becomes of it here; empty where it is unknown."""
    without = IN_WRITING if option.of == WRITING else WITHOUT_EFFECT
    if option.name in without:
        return f"no effect, and a warning: {without[option.name]}"
    if option.name not in OPTIONS:
        return ""
    return f"the same; {option.differs}" if option.differs else "the same"


def _refused() -> str:
    names = ", ".join(f"`{name}`" for name in REFUSED)
    return f"\nRefused, as there: {names}.\n"


def suites() -> dict[str, dict[str, str]]:
    """Of each suite of the connector's: its tests, and where ours is, or why there is none."""
    return tomllib.loads(SUITES.read_text(encoding="utf-8"))


def is_test(where: str) -> bool:
    """Whether it is the place of a test; else it is a reason."""
    return "::" in where


def _suites() -> str:
    lines = [
        """
## The connector's own tests

What its suites hold, rebuilt for `format("lapse")` from a broker. Titles are theirs.

| suite | test | ours, below `tests/` |
|---|---|---|
"""
    ]
    for suite, tests in suites().items():
        for title, where in tests.items():
            ours = f"`{where}`" if is_test(where) else f"none: {where}"
            lines.append(f"| {suite} | {title} | {ours} |\n")
    return "".join(lines)


def _columns() -> str:
    names = ", ".join(f"`{name}`" for name in COLUMNS.split(", "))
    return f"""
Columns: {names} are as there. `headers` comes with `includeHeaders`, as there. More:
[the data source](data-source.md#columns).

Other than there: what a frame reads is planned at its first action, and stays so for all that is
made of the same `load()` (Spark keeps it so for sources in Python), so load again to read what came
since; filters are Spark's to apply, and what the option `where` excludes is dropped in the
task, of a stream too; `format("lapse")` has no batch-by-batch cache of
consumers in executors, but keeps connections in Python's workers; offsets of the checkpoint have
the topic's id beside them, so that a topic that was made anew is noticed.
"""


def main(argv: list[str]) -> int:
    """Write or check."""
    return write_or_check(argv, __doc__, COMMAND, lambda: {PAGE: page()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
