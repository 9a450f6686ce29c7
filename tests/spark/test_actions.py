"""`lapse.spark.actions` in a classic session and in a client of Spark Connect: the same rows."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.groups import group_ids
from lapse.client.producer import Producer
from lapse.lifecycle.erase.sign import load_or_make_key
from lapse.spark import actions
from lapse.spark.actions.clean import clean_logs
from lapse.spark.session.jobs import Jobs, Work
from lapse.spark.session.session import OpenSession
from lapse.testing.broker_process import BrokerProcess
from tests.spark.notebook import GROUP, TOPIC, Rows, progress_of, walk
from tests.spark.test_engine import owning
from tests.support.java import QUICK_JAVA
from tests.support.lifecycle.rounds import overwritten

RECORDS = 40
READ = 25


async def fill(bootstrap: str) -> None:
    """TOPIC with RECORDS of ten keys, compacted; a topic to copy it to."""
    async with await Admin.open(bootstrap) as admin:
        quick = {"cleanup.policy": "compact,delete", "segment.ms": "1"}
        for name in (TOPIC, "copied"):
            await admin.create_topic(name, partitions=1, configs=quick)
    now_ms = SystemClock().now_ms() - 10_000
    for first in (0, RECORDS // 2):  # a batch each, and as they are a second apart, a segment
        async with Producer(bootstrap) as producer:
            for n in range(first, first + RECORDS // 2):
                at_ms = now_ms + 50 * n
                await producer.send(TOPIC, b"k%d" % (n % 10), b"v%d" % n, None, at_ms)


def commit(bootstrap: str) -> None:
    """GROUP has read READ records."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    reader.commit(offsets=[TopicPartition(TOPIC, 0, READ)], asynchronous=False)
    reader.close()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """`logs` and the same as it is `before`, a signing key, and a broker's directory: `broker`.

    And `giants`, as they are said to be where there is no memory, with others `in one piece`.
    """
    with owning(tmp_path / "logs", {"users": overwritten(), "idle": overwritten(times=1)}):
        pass
    shutil.copytree(tmp_path / "logs", tmp_path / "before")
    with owning(tmp_path / "giants", {"a": overwritten(60, 5), "b": overwritten(90, 2)}):
        pass
    shutil.copytree(tmp_path / "giants", tmp_path / "in one piece")
    load_or_make_key(RealFs(), tmp_path / "key.pem")
    with BrokerProcess(tmp_path / "broker", {"lapse.roll.time": "record"}) as broker:
        asyncio.run(fill(broker.bootstrap))
        commit(broker.bootstrap)
        yield tmp_path, broker.bootstrap


def connected(root: Path, broker: str) -> dict[str, Rows]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.notebook", str(root), broker],
        env={**os.environ, **QUICK_JAVA}, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Rows] = json.loads(done.stdout)
    return found


def test_all_of_them_in_a_classic_session(places: tuple[Path, str], session: OpenSession) -> None:
    look_at(walk(session.spark, *places), places[0])
    assert written_exactly_once(places[1])


def test_all_of_them_under_spark_connect(places: tuple[Path, str]) -> None:
    """The client of it sees no file of ours."""
    found = connected(*places)
    [refused] = found.pop("a path from here")
    assert refused["text"].startswith("path=data: allowed is an absolute path")
    assert found.pop("registered") == [{"records": 9}]
    [progress] = found.pop("progress")
    look_at_progress([tuple(one) for one in progress["told"]])
    look_at(found, places[0])
    assert written_exactly_once(places[1]), "tasks are told of their query and batch there, too"


def written_exactly_once(bootstrap: str) -> bool:
    """By the word that the sink of `copy` leaves with its rows."""

    async def groups() -> list[str]:
        async with Cluster(parse_bootstrap(bootstrap)) as cluster:
            return await group_ids(cluster)

    return any(name.startswith("lapse-sink.") for name in asyncio.run(groups()))


def test_it_tells_how_far_it_is_and_what_the_job_is(session: OpenSession) -> None:
    """And what somebody has said of his own jobs still stands after it."""
    context = session.spark.sparkContext
    context.setJobGroup("mine", "my own")
    look_at_progress(progress_of(session.spark))
    assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    assert context.getLocalProperty("spark.job.description") == "my own"
    context.setLocalProperty("spark.jobGroup.id", cast("str", None))
    context.setLocalProperty("spark.job.description", cast("str", None))
    look_at_progress(progress_of(session.spark))
    assert context.getLocalProperty("spark.job.description") is None


def look_at_progress(told: list[tuple[str, int, int]]) -> None:
    assert {(what, total) for what, _, total in told} == {("waiting", 6)}
    done = [n for _, n, _ in told]
    assert (done[0], done[-1], done) == (0, 6, sorted(done))
    assert len(set(done)) > 2, "in between, too"


class Merging(Jobs):
    """Jobs that come to nothing where a split log's ranges are merged."""

    def all(
        self, what: str, work: Work, requests: Sequence[bytes], *, alone: bool = False
    ) -> list[bytes]:
        if ": merging" in what:
            raise actions.ActionFailed(f"{what}: the machine is gone")
        return super().all(what, work, requests, alone=alone)


def test_a_split_log_that_fails_costs_no_other_one(session: OpenSession, tmp_path: Path) -> None:
    data = tmp_path / "logs"
    with owning(data, {"giant": overwritten(2000, 3), "small": overwritten(5, 2)}):
        pass
    before = segments_of(data)
    words = ("clean", "-ccleanup.policy=compact", "-cmin.compaction.lag.ms=0", "--memory=1m")
    lines = {
        line.partition: line for line in clean_logs(Merging(session.spark), (*words, str(data)))
    }
    assert lines["small-0"].outcome == "cleaned"
    assert lines["giant-0"].finding
    assert "merging" in lines["giant-0"].outcome
    assert lines["giant-0"].outcome.endswith("the machine is gone")
    after = segments_of(data)
    changed = {path.parent.name for path in before if after.get(path) != before[path]}
    assert changed == {"small-0"}
    [left] = actions.clean(
        session.spark, data, config={"cleanup.policy": "compact"}, memory="1m",
        partitions=["giant-0"],
    ).collect()  # fmt: skip
    assert left.outcome == "cleaned"


def test_a_job_that_fails_says_why_in_a_line(session: OpenSession) -> None:
    def fail(_: bytes) -> bytes:
        raise ModuleNotFoundError("No module named 'lapse'")

    with pytest.raises(actions.ActionFailed, match="trying: the Spark job failed: ") as failed:
        Jobs(session.spark).one("trying", fail, b"")
    assert "has no lapse" in str(failed.value)
    assert "\n" not in str(failed.value)


def look_at(found: dict[str, Rows], root: Path) -> None:
    """What each action has said, and done."""

    def each(name: str, *fields: str) -> list[Any]:
        rows = [tuple(row[field] for field in fields) for row in found[name]]
        return rows if len(fields) > 1 else [value for (value,) in rows]

    logs = ["idle-0", "users-0"]
    assert each("plan", "partition", "due") == [(name, ["dirty ratio"]) for name in logs]
    assert each("explain", "rule") == ["due"]
    assert found["explain"][0]["fate"]["state"] == "there"
    assert each("would clean", "outcome") == ["would be cleaned"] * 2
    assert each("clean", "partition", "outcome") == [(name, "cleaned") for name in logs]
    assert found["clean, looked at again"] == found["clean"]
    assert [first == 0 for first in each("clean", "first_dirty_before")] == [True] * 2
    assert each("clean again", "first_dirty_before") == each("clean", "first_dirty_after")
    assert each("clean again", "due") == [[], []]
    assert each("clean giants", "partition", "outcome") == [("a-0", "cleaned"), ("b-0", "cleaned")]
    jobs = "; ".join(each("clean giants, its jobs", "what"))
    assert all(f"cleaning {name}, split: rewriting" in jobs for name in ("a-0", "b-0")), jobs
    here = ["clean", str(root / "in one piece"), "-ccleanup.policy=compact", "--engine=inline"]
    assert main([*here, "-cmin.compaction.lag.ms=0"]) == 0
    assert segments_of(root / "giants") == segments_of(root / "in one piece")
    assert each("verify", "type", "partition", "fine") == [("log", name, True) for name in logs]
    assert found["verify"][1]["removed"]["superseded"] > 0
    look_at_export(found, root)
    users = {row["key"]: row["value"] for row in found["read_arrow"] if row["topic"] == "users"}
    assert users == dict(overwritten())
    assert each("in SQL", "records") == [len(found["read_arrow"])]
    assert each("read_arrow of a broker", "offset") == list(range(RECORDS))
    assert each("prove_erased", "state") == ["proven"]
    assert each("prove_erased, there", "state") == ["remains"]
    assert found["prove_erased, there"][0]["report"] == (root / "report.json").read_text()
    look_at_broker(found, root)


def segments_of(data: Path) -> dict[Path, bytes]:
    """Of each log; the folders of its rounds are gone."""
    assert not [path for path in data.glob("*/.lapse/*") if path.name.startswith("clean-")]
    return {path.relative_to(data): path.read_bytes() for path in data.glob("*/*.log")}


def look_at_export(found: dict[str, Rows], root: Path) -> None:
    [would], [done], [again] = (found[f"{n}export{m}"] for n, m in WOULD_DID_AGAIN)
    assert (would["records_new"], would["files"]) == (done["records_new"], 0)
    assert done["why"] == "there is no table yet"
    assert (again["records_new"], again["files"], again["why"]) == (0, done["files"], "")
    rows = pq.read_table(root / "table", columns=["key", "value"]).to_pylist()
    last = {row["key"].decode(): row["value"].decode() for row in rows}
    assert last == dict(overwritten())
    assert len(rows) == len(dict(overwritten()))


WOULD_DID_AGAIN = (("would ", ""), ("", ""), ("", " again"))


def look_at_broker(found: dict[str, Rows], root: Path) -> None:
    assert TOPIC + "-0" in {row["partition"] for row in found["plan of brokers"]}
    outcomes = {row["partition"]: row["outcome"] for row in found["clean with the broker"]}
    assert outcomes[TOPIC + "-0"] == "cleaned"
    [would], [did] = found["would erase"], found["erase"]
    assert (would["topic"], would["keys"], would["tombstones"]) == (TOPIC, 1, 1)
    assert (did["verdict"], did["tombstones_written"], did["deadline"]) == ("remains", 1, "open")
    assert Path(did["proof"]).is_relative_to(root / "order")
    assert found["would copy"] == []
    assert found["copy"] == [{"topic": TOPIC, "partition": 0, "copied_to": RECORDS + 1}]
    [would], [did] = found["would delete"], found["delete_consumed"]
    assert (would["delete_before"], would["dry_run"], would["low_watermark"]) == (READ, True, None)
    assert (did["low_watermark"], did["consumers"], did["blocked"]) == (
        READ,
        {f"group {GROUP}": READ},
        [],
    )
