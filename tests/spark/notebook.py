"""What somebody does with all actions, in a session of any kind; `test_actions` looks at the rows.

    python -m tests.spark.notebook DIR BROKER

is a client of Spark Connect that may touch nothing below DIR: what it opens there, or lists, ends
it. It prints the rows as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lapse.base.errors import ConfigError
from lapse.spark import actions, read_arrow, source
from lapse.spark.session.java import find_java
from lapse.spark.session.jobs import Jobs

SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0}
TOPIC, GROUP, KEY = "orders", "readers", "k3"

Rows = list[dict[str, Any]]


def walk(spark: SparkSession, root: Path, broker: str) -> dict[str, Rows]:
    """All of them, one after the other; `root` has the folders of `test_actions.places`."""
    logs, users = root / "logs", ["users-0"]
    found: dict[str, Rows] = {}

    def note(name: str, frame: DataFrame) -> None:
        found[name] = rows_of(frame)

    note("plan", actions.plan(spark, logs, config=SETTINGS))
    note("explain", actions.explain(spark, logs, partitions=users, offset=0, config=SETTINGS))
    note("would clean", actions.clean(spark, logs, config=SETTINGS, dry_run=True))
    cleaned = actions.clean(spark, logs, config=SETTINGS)
    note("clean", cleaned)
    note("clean, looked at again", cleaned)
    note("clean again", actions.clean(spark, logs, config=SETTINGS))
    told = set[str]()
    note("clean giants", actions.clean(
        spark, root / "giants", config=SETTINGS, memory="4k",
        on_progress=lambda what, *_: told.add(what),
    ))  # fmt: skip
    found["clean giants, its jobs"] = [{"what": what} for what in told]
    note("verify", actions.verify(spark, root / "before", [logs], config=SETTINGS))
    table = {"topic": "users", "to": root / "table", "from_": logs, "config": SETTINGS}
    note("would export", actions.export(spark, **table, dry_run=True))
    note("export", actions.export(spark, **table))
    note("export again", actions.export(spark, **table))
    signed = {"sign_with": root / "key.pem"}
    gone = actions.prove_erased(spark, topic="users", replica=[logs], key=["never"], **signed)
    note("prove_erased", gone)
    note("prove_erased, there", actions.prove_erased(
        spark, topic="users", replica=[logs], key=[KEY], report=root / "report.json", **signed
    ))  # fmt: skip
    wanted = {"columns": "topic,partition,offset,key,value"}
    note("read_arrow", read_arrow(spark, wanted, path=str(logs)))
    note("read_arrow of a broker", read_arrow(
        spark, {**wanted, "kafka.bootstrap.servers": broker, "subscribe": TOPIC}
    ))  # fmt: skip
    where = f"path '{logs}', columns 'offset'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING lapse OPTIONS ({where})")
    note("in SQL", spark.sql("SELECT count(*) AS records FROM seen"))
    with_broker(spark, root, broker, found)
    return found


def with_broker(spark: SparkSession, root: Path, broker: str, found: dict[str, Rows]) -> None:
    """Those that ask a broker; TOPIC has records, and GROUP has read some."""
    at = {"bootstrap_server": broker, "client": {"request.timeout.ms": "60000"}}
    erasing = {"topic": TOPIC, "key": KEY, "replica": root / "broker", **at}
    found["plan of brokers"] = rows_of(actions.plan(spark, **at))
    found["clean with the broker"] = rows_of(actions.clean(spark, root / "broker", force=True))
    found["would erase"] = rows_of(actions.erase(spark, **erasing, dry_run=True))
    found["erase"] = rows_of(actions.erase(
        spark, **erasing, order=root / "order", sign_with=root / "key.pem", deadline="1d", wait=0
    ))  # fmt: skip
    copying = {"from_": broker, "to": broker, "topic": TOPIC, "as_": "copied"}
    copying |= {"checkpoint": root / "copy"}
    found["would copy"] = rows_of(actions.copy(spark, **copying, dry_run=True))
    found["copy"] = rows_of(actions.copy(spark, **copying))
    eating = {"groups": GROUP, "topic": TOPIC, **at}
    found["would delete"] = rows_of(actions.delete_consumed(spark, **eating, dry_run=True))
    found["delete_consumed"] = rows_of(actions.delete_consumed(spark, **eating))


def progress_of(spark: SparkSession) -> list[tuple[str, int, int]]:
    """What is told of six tasks that take half a second each."""
    told: list[tuple[str, int, int]] = []

    def wait(request: bytes) -> bytes:
        time.sleep(0.5)
        return request

    jobs = Jobs(spark, lambda what, done, total: told.append((what, done, total)))
    assert jobs.all("waiting", wait, [b"%d" % n for n in range(6)]) == [b"%d" % n for n in range(6)]
    assert jobs.slots() == 2
    return told


def rows_of(frame: DataFrame) -> Rows:
    """As JSON has them."""
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return [json.loads(json.dumps(row, default=text_of)) for row in rows]


def text_of(value: bytes | bytearray) -> str:
    """Binary columns, which all hold text here."""
    return bytes(value).decode()


# --- a client of Spark Connect --------------------------------------------------------------------


def keep_out_of(root: str) -> None:
    """From here on this process ends where it opens, lists, makes or removes anything there."""

    def look(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" or event.startswith(("os.", "shutil.", "glob.")):
            for word in args:
                if isinstance(word, str | os.PathLike) and os.fspath(word).startswith(root):
                    sys.stderr.write(f"the client touched {word}: {event}\n")
                    os._exit(99)

    sys.addaudithook(look)


def main() -> None:
    """A session of Spark Connect, with a server of its own."""
    root, broker = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(find_java(os.environ).home)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    keep_out_of(root)
    found = walk(spark, Path(root), broker)
    try:
        actions.plan(spark, "data")
    except ConfigError as e:
        found["a path from here"] = [{"text": str(e)}]
    found["progress"] = [{"told": progress_of(spark)}]
    source.register(spark)
    rows = spark.read.format("lapse").option("kafka.bootstrap.servers", broker).load()
    found["registered"] = [{"records": rows.where("topic = 'copied' and offset < 9").count()}]
    sys.stdout.write(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
