"""`kill -9` of workers, daemons and drivers while a copy and an export run: each record once.

One topic is copied to another and exported as a table, in turns of a driver of its own, while
records are added to it. Whenever somebody looks, who reads what is committed finds in each
partition of the copy how the original begins, and nothing twice; after a turn without any trouble
all of it, and in the table the last value of each key.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.client.admin import Admin
from lapse.client.consumer import Consumer
from lapse.client.producer import Producer
from lapse.spark import source
from lapse.spark.export import copy as topic_copy
from lapse.spark.export.copy import ClusterAddress, CopySpec, claim, copy_what_is_there
from lapse.spark.export.decide import Kind
from lapse.spark.export.look import at_brokers
from lapse.spark.export.run import ExportOptions, Source, export
from lapse.spark.export.table import ATTEMPTS, Table
from lapse.spark.session.jobs import Jobs
from lapse.spark.session.session import SessionOptions, open_session
from lapse.testing.broker_process import BrokerProcess
from tests.spark import processes
from tests.spark.processes import needs_proc
from tests.support.client.committed import committed_records
from tests.support.java import QUICK_JAVA

MODULE = "tests.spark.test_written_once_killed"
HERE, THERE, PARTITIONS = "original", "copied", 3
RECORDS, KEYS = 90, 25  # a turn; of all
OFFSETS_A_BATCH = 40
TURN_SECONDS_MAX = 240
STRIKES = ("worker", "daemon", "driver", "driver")
LOOK_SECONDS, GAP_SECONDS_MAX = 0.01, 0.15
Row = tuple[bytes | None, bytes | None]


@dataclass
class Account:
    """What was sent, by partition; and who may look at what came of it."""

    bootstrap: str
    folder: Path
    chance: random.Random
    turns: list[Turns] = field(default_factory=list)
    sent: dict[int, list[Row]] = field(default_factory=lambda: {n: [] for n in range(PARTITIONS)})

    async def begin(self) -> None:
        async with await Admin.open(self.bootstrap) as admin:
            for topic in (HERE, THERE):
                settings = {"cleanup.policy": "compact"} if topic == HERE else {}
                await admin.create_topic(topic, partitions=PARTITIONS, configs=settings)

    async def send(self) -> None:
        async with Producer(self.bootstrap) as producer:
            for _ in range(RECORDS):
                number = self.chance.randrange(KEYS)
                key, partition = b"k%d" % number, number % PARTITIONS
                count = sum(map(len, self.sent.values()))
                value = None if self.chance.random() < 0.1 else b"v%d" % count
                self.sent[partition].append((key, value))
                await producer.send(HERE, key, value, partition=partition)

    async def copied(self) -> dict[int, list[Row]]:
        """By partition, as for who reads what is committed."""
        found: dict[int, list[Row]] = {n: [] for n in range(PARTITIONS)}
        for record in await committed_records(self.bootstrap, [THERE]):
            found[record.partition.partition].append((record.key, record.value))
        return found

    async def written(self) -> int:
        """Offsets of the copy, whether they count or not."""
        async with Consumer(self.bootstrap) as consumer:
            mine = [p for p in await consumer.partitions() if p.topic == THERE]
            return sum((await consumer.end_offsets(mine)).values())

    def has_grown(self, before: int) -> bool:
        """Whether something is in the copy that was not."""
        return asyncio.run(self.written()) > before

    def exports(self) -> bool:
        """Whether a run of the export is under way, or was when it was killed."""
        return any((self.folder / "table" / ATTEMPTS).glob("*.begun"))

    def look(self, *, whole: bool) -> None:
        """Nothing is there twice; all of it, where `whole`."""
        copied = asyncio.run(self.copied())
        for partition, rows in copied.items():
            sent = self.sent[partition]
            assert rows == (sent if whole else sent[: len(rows)]), f"partition {partition}"
        if whole:
            table = ds.dataset(self.folder / "table", partitioning="hive").to_table()
            found = list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
            last = {key: value for rows in self.sent.values() for key, value in rows}
            assert sorted(found) == sorted((k, v) for k, v in last.items() if v is not None)


class Turns:
    """A driver in a process of its own: a turn for each line that it is given."""

    def __init__(self, account: Account) -> None:
        with (account.folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, account.bootstrap, str(account.folder)],
                cwd=Path(__file__).parents[2], env={**os.environ, **QUICK_JAVA},
                start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self.pid = self._process.pid
        self._ended = threading.Event()
        account.turns.append(self)

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._ended.clear()
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().decode().strip()
        self._ended.set()

    def is_over(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def strike(self, kind: str) -> None:
        if kind == "driver":
            self.end()
            return
        found = {"worker": processes.worker_pids, "daemon": processes.daemon_pids}[kind]
        processes.kill(sorted(found(self.pid))[:1])

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def account(tmp_path: Path, seed: int) -> Iterator[Account]:
    with BrokerProcess(tmp_path / "data") as broker:
        made = Account(broker.bootstrap, tmp_path, random.Random(seed))
        asyncio.run(made.begin())
        try:
            yield made
        finally:
            for turns in made.turns:
                turns.end()


@needs_proc
def test_whoever_is_killed_each_record_is_there_once(
    account: Account, scaled: Callable[[int], int]
) -> None:
    chance, turns = account.chance, None
    for _ in range(scaled(50)):
        asyncio.run(account.send())
        if turns is None:
            turns = Turns(account)
        turns.begin()
        for kind in chance.choices(STRIKES, k=chance.randint(1, 2)):
            before = asyncio.run(account.written())
            copies = partial(account.has_grown, before)
            is_at_work = chance.choice((copies, copies, account.exports))
            while not is_at_work() and not turns.is_over(LOOK_SECONDS):
                pass
            if turns.is_over(chance.uniform(0, GAP_SECONDS_MAX)):
                break
            turns.strike(kind)
        assert turns.is_over(TURN_SECONDS_MAX), "it neither ends nor fails"
        if turns.said != "done":
            turns.end()
            turns = None
        account.look(whole=False)
    if turns is not None:
        turns.end()
    asyncio.run(account.send())
    last = Turns(account)
    last.begin()
    assert last.is_over(TURN_SECONDS_MAX)
    assert last.said == "done", (account.folder / "driver.log").read_text()[-3000:]
    last.end()
    account.look(whole=True)


# --- the driver -----------------------------------------------------------------------------------


def main(bootstrap: str, folder: Path) -> None:
    """A turn a line; says `done`, or what went wrong."""
    settings = {**topic_copy.SETTINGS}
    spark = open_session(SessionOptions("local[2]", settings=settings)).spark
    source.register(spark)
    cluster = ClusterAddress(bootstrap)
    spec = CopySpec(
        cluster, cluster, (HERE,), folder / "checkpoint", THERE, offsets_max=OFFSETS_A_BATCH
    )
    clock, wish = SystemClock(), ExportOptions(HERE, Kind.LATEST)
    for _ in sys.stdin:
        try:
            asyncio.run(claim(spec, RealFs()))
            copy_what_is_there(spark, spec)
            topic = at_brokers(HERE, bootstrap, {}, {})
            where = Source(Jobs(spark), topic.options, HERE, str(folder / "table"))
            table = Table(folder / "table", RealFs())
            export(table, where, lambda topic=topic: topic.look(clock), wish, clock)
        except Exception as e:  # noqa: BLE001  (whatever was killed)
            said = f"failed: {type(e).__name__}"
        else:
            said = "done"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
