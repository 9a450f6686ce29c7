"""`lapse erase` beside a broker in a process of its own: from the order to the proof."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.client.admin import Admin
from lapse.client.consumer import Consumer
from lapse.client.producer import Producer
from lapse.client.settings import TOPIC, Resource
from lapse.lifecycle.erase.order import load_order
from lapse.testing.broker_process import BrokerProcess
from tests.compat.rounds_beside import rounds_beside

GONE = ("u-1", "u-2", "u-3")
LAG = "max.compaction.lag.ms"
SETTINGS = {"lapse.housekeeping.interval.ms": "20"}
CONFIGS = {
    "cleanup.policy": "compact",
    "file.delete.delay.ms": "100",
    "delete.retention.ms": "300",
    "lapse.tombstone.removal.max.lag.ms": "100",
    LAG: "3600000",
}
_WRITTEN = "tombstones written"


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may leave a key with whoever runs it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


class Case:
    """A broker with a topic, and an order about it."""

    def __init__(self, broker: BrokerProcess, topic: str, folder: Path) -> None:
        self.broker, self.topic, self.order = broker, topic, folder / "order"
        words = [word for name, text in CONFIGS.items() for word in ("-c", f"{name}={text}")]
        assert main(["topic", "create", self.topic, "-p", "2", *words, *self.at]) == 0

    @property
    def at(self) -> tuple[str, str]:
        return "--bootstrap-server", self.broker.bootstrap

    def words(self, *more: str) -> list[str]:
        keys = [word for key in GONE for word in ("--key", key)]
        where = ["--replica", str(self.broker.data), "--order", str(self.order)]
        return ["erase", "--topic", self.topic, *keys, *where, "--json", *self.at, *more]

    def erase(self, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(self.words(*more))
        return code, json.loads(capsys.readouterr().out)

    def write(self, *keys: str) -> None:
        async def write() -> None:
            async with Producer(self.broker.bootstrap) as producer:
                for n, key in enumerate(keys):
                    await producer.send(self.topic, key.encode(), b"value %d" % n)

        asyncio.run(write())

    def ends(self) -> list[int]:
        async def ask() -> list[int]:
            async with await Admin.open(self.broker.bootstrap) as admin:
                told = await admin.describe_topic(self.topic)
                return [one.log_end_offset for one in told.partitions]

        return asyncio.run(ask())

    def lag(self) -> str | None:
        async def ask() -> str | None:
            resource = Resource(TOPIC, self.topic)
            async with await Admin.open(self.broker.bootstrap) as admin:
                return (await admin.describe_configs([resource]))[resource].entries[LAG].value

        return asyncio.run(ask())

    def keys(self) -> set[str]:
        """Those that have a value for a consumer."""

        async def read() -> set[str]:
            found: dict[bytes | None, bytes | None] = {}
            both = [TopicPartition(self.topic, n) for n in range(2)]
            async with Consumer(self.broker.bootstrap) as consumer:
                await consumer.assign(dict.fromkeys(both, 0))
                ends = await consumer.end_offsets(both)
                while any(consumer.position(one) < ends[one] for one in both):
                    for record in await consumer.poll():
                        found[record.key] = record.value
            return {(key or b"").decode() for key, value in found.items() if value is not None}

        return asyncio.run(read())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("erase") / "data", SETTINGS) as running:
        yield running
        assert "ended by an error of ours" not in running.log()


def test_from_the_order_to_the_proof(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values, tombstones and the changed setting are gone; other keys are not."""
    case = Case(broker, "people", tmp_path)
    with rounds_beside(broker.data):
        case.write(*GONE, "stays", *GONE)
        code, row = case.erase(capsys, "--deadline", "10m")
        assert (code, row["verdict"], row["deadline"]) == (0, "proven", "met")
        assert (row["tombstones_written"], row["records"], row["tombstones"]) == (3, 0, 0)
        assert case.keys() == {"stays"}
        assert case.lag() == CONFIGS[LAG]
        keys = [word for key in GONE for word in ("--key", key)]
        assert main(["prove-erased", "--check", row["proof"], *keys]) == 0
        folders = broker.data.glob("people-*/**/*")
        files = b"".join(path.read_bytes() for path in folders if path.is_file())
        assert not any(key.encode() in files for key in GONE)
        assert b"stays" in files
        kept = b"".join(p.read_bytes() for p in case.order.iterdir())
        assert not any(key.encode() in kept for key in GONE)


def test_killed_it_goes_on_and_what_came_back_stays(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No second tombstone; the setting is put back; a value written since the order is not lost."""
    case = Case(broker, "returned", tmp_path)
    case.write(*GONE, "stays")
    assert _WRITTEN in ended_when_waiting(case, signal.SIGKILL)
    assert sum(case.ends()) == 7
    order = load_order(case.order)
    assert order is not None
    assert order.topics[0].forced is not None
    assert case.lag() == "1000"
    code, row = case.erase(capsys, "--wait", "0")
    assert (code, row["verdict"], row["tombstones_written"]) == (1, "remains", 0)
    assert (sum(case.ends()), case.lag()) == (7, CONFIGS[LAG])
    assert _WRITTEN not in ended_when_waiting(case, signal.SIGTERM)
    assert (sum(case.ends()), case.lag()) == (7, CONFIGS[LAG])
    case.write("u-2")  # who came back
    with rounds_beside(broker.data):
        code, row = case.erase(capsys)
    assert (code, row["verdict"], row["tombstones_written"]) == (0, "proven", 0)
    assert case.keys() == {"stays", "u-2"}
    assert case.ends()[0] + case.ends()[1] == 8


def ended_when_waiting(case: Case, number: int) -> str:
    """By a signal as soon as it has done all it can and waits for rounds; what it said."""
    command = [sys.executable, "-m", "lapse.cli.main", *case.words()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while f"{LAG}=1000" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
    return said
