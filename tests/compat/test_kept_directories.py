"""Data directories that earlier commits left behind: opened, read, cleaned and gone on with.

Each archive of tests/golden/kept has three (its README.md says which) and what stock clients saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from lapse.cli.main import main
from lapse.lifecycle.round.ledger import departures
from lapse.testing.broker_process import BrokerProcess
from tests.golden.kept.__main__ import CLEAN, EXPECTED, HERE, INTERRUPTED, KILLED
from tests.golden.kept.observe import observe, records
from tests.golden.kept.traffic import BROKER, COMPACTED, GROUPS, OPEN, PARTITIONS, SECONDS
from tests.oracle.oracle import unpack

ARCHIVES = sorted(HERE.glob("*.tar.xz"))
KEY, VALUE = 3, 4
LATER_MS = 10 * 366 * 86_400_000  # whatever was stamped may go by then


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One archive, unpacked for this test alone."""
    unpack(request.param, tmp_path)
    return tmp_path


@pytest.fixture
def expected(kept: Path) -> dict[str, Any]:
    return json.loads((kept / EXPECTED).read_text())


def serve(data: Path) -> BrokerProcess:
    return BrokerProcess(data, BROKER)


def newest(of: dict[str, Any]) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Each compacted log's live keys, with their records."""
    for topic in COMPACTED:
        for partition in range(PARTITIONS.get(topic, 1)):
            seen = of["topics"][topic]["partitions"][str(partition)]["read_committed"]["records"]
            last = {record[KEY]: record for record in seen}
            yield f"{topic}-{partition}", {k: r for k, r in last.items() if r[VALUE] is not None}


def test_there_is_a_kept_directory() -> None:
    assert ARCHIVES


def test_what_stopped_cleanly_is_as_it_was(kept: Path, expected: dict[str, Any]) -> None:
    with serve(kept / CLEAN) as broker:
        assert observe(broker.bootstrap, GROUPS) == expected[CLEAN]
        assert "Traceback" not in broker.log()


def test_what_was_killed_is_as_it_was(kept: Path, expected: dict[str, Any]) -> None:
    """An open transaction hides its records still, or has been given up since: never committed."""
    with serve(kept / KILLED) as broker:
        seen = observe(broker.bootstrap, GROUPS)
        assert "Traceback" not in broker.log()
        for either in (seen, expected[KILLED]):
            for isolation in ("read_committed", "read_uncommitted"):
                del either["topics"][OPEN]["partitions"]["0"][isolation]["end"]
        assert seen == expected[KILLED]


def test_an_open_transaction_is_ended_by_its_own_producer(kept: Path) -> None:
    """Whoever comes back with the transactional id ends what its old self left open."""
    with serve(kept / KILLED) as broker:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": "opener", "log_level": 0}
        )
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce(OPEN, b"after the upgrade", b"0")
        producer.commit_transaction(SECONDS)
        where = TopicPartition(OPEN, 0)
        values = [r[VALUE] for r in records(broker.bootstrap, where, "read_committed")]
        assert values.pop() == "after the upgrade"
        assert "not yet" not in values


@pytest.mark.parametrize("state", [CLEAN, INTERRUPTED])
def test_rounds_go_on_where_they_were(kept: Path, expected: dict[str, Any], state: str) -> None:
    """Every live record is there, byte for byte, and of each key only the newest."""
    data = kept / state
    for _ in range(2):
        now = str(max_time(expected[CLEAN]) + LATER_MS)
        assert main(["clean", str(data), "--force", "--engine", "inline", "--now", now]) == 0
    assert main(["plan", str(data)]) == 0
    with serve(data) as broker:
        seen = observe(broker.bootstrap, GROUPS)
        for (log, live), (_, had) in zip(newest(seen), newest(expected[CLEAN]), strict=True):
            assert live == had, log
        for topic in COMPACTED:
            assert len(seen["topics"][topic]["partitions"]) == PARTITIONS.get(topic, 1)
        assert seen["groups"] == expected[CLEAN]["groups"]


def test_a_killed_commit_is_finished(kept: Path, expected: dict[str, Any]) -> None:
    """The intent and the half renamed files are an earlier commit's; this one puts them right."""
    data = kept / INTERRUPTED
    assert list(data.glob("*/.lapse/intent"))
    with serve(data) as broker:
        seen = observe(broker.bootstrap, GROUPS)
        for (log, live), (_, had) in zip(newest(seen), newest(expected[CLEAN]), strict=True):
            assert live == had, log
            assert not unaccounted(data / log, of_log(expected[CLEAN], log), of_log(seen, log))
    assert not list(data.glob("*/.lapse/intent"))


def of_log(seen: dict[str, Any], log: str) -> set[int]:
    """The offsets of its records."""
    topic, _, partition = log.rpartition("-")
    found = seen["topics"][topic]["partitions"][partition]["read_uncommitted"]["records"]
    return {record[0] for record in found}


def unaccounted(log_dir: Path, before: set[int], after: set[int]) -> list[int]:
    """Records that went, and no ledger says when or why."""
    return [offset for offset in before - after if not list(departures(log_dir, offset))]


def max_time(of: dict[str, Any]) -> int:
    """The newest time of any record: no clock is asked that a test could outlive."""
    return max(
        record[2]
        for topic in of["topics"].values()
        for partition in topic["partitions"].values()
        for record in partition["read_uncommitted"]["records"]
    )
