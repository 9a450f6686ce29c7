"""`lapse erase`: what it takes, does, prints and returns, against a real broker without rounds.

From the order to the proof, with rounds, it goes in tests/compat/test_erase.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lapse.base.fs import RealFs
from lapse.broker.access.listeners import Address
from lapse.broker.node import Node
from lapse.cli.erase import Row, _exit_code
from lapse.cli.main import main
from lapse.client.admin import Admin
from lapse.client.settings import TOPIC, ConfigChange, Resource
from lapse.lifecycle.erase.order import Forced, Order, load_order, save_order
from lapse.lifecycle.erase.search import Bound
from lapse.lifecycle.erase.sign import fingerprint, unseal
from lapse.lifecycle.erase.table_files import EXPORT_STATE
from lapse.records.builder import NewRecord, build_batch
from lapse.security.acls import Operation, ResourceType
from lapse.wire.schema.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.support.broker.secured import WITH_ACLS, address_of, allow, set_acls
from tests.support.cli.terminal import at_terminal
from tests.support.lifecycle.erase.replica import written
from tests.support.serving import stop_serving

LAG = "max.compaction.lag.ms"
FOREVER = str((1 << 63) - 1)


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may leave a key with whoever runs it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Topics t, of two partitions, and u, each with keys k0 … k4; and one that is not compacted."""
    async with running_node(tmp_path / "data") as running, await connect(running) as connection:
        await create(running, "t", partitions=2, cleanup_policy="compact")
        await create(running, "u", cleanup_policy="compact,delete", min_compaction_lag_ms="7000")
        await create(running, "plain")
        five = batch_of(*(b"v%d" % n for n in range(5)))
        await produce(connection, "t", (0, five), (1, five))
        await produce(connection, "u", (0, five))
        yield running


class Told:
    """How a run ended, and what it printed: JSON lines, and words."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.err = code, err
        self.rows: list[dict[str, Any]] = [
            json.loads(line) for line in out.splitlines() if line.startswith("{")
        ]


class Erases:
    """The command over the node's own directory, in a thread: the broker is in this one."""

    def __init__(
        self, node: Node, folder: Path, capsys: pytest.CaptureFixture[str],
        address: Address | None = None,
    ) -> None:  # fmt: skip
        self._node, self.folder, self._capsys = node, folder, capsys
        self._address = address or node.services.address
        self.order = folder / "order"

    async def __call__(self, *words: str, replica: str | None = None) -> Told:
        address = self._address
        at = ("--bootstrap-server", f"{address.host}:{address.port}")
        where = ("--replica", replica or str(self.folder / "data"), "--order", str(self.order))
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, ["erase", *at, *where, "--json", *words])
        return Told(code, *self._capsys.readouterr())

    async def ends(self, topic: str) -> list[int]:
        async with await connect(self._node) as connection:
            told = await Admin(connection).describe_topic(topic)
        return [one.log_end_offset for one in told.partitions]

    async def lag(self, topic: str) -> str | None:
        """max.compaction.lag.ms."""
        resource = Resource(TOPIC, topic)
        async with await connect(self._node) as connection:
            configs = await Admin(connection).describe_configs([resource])
        return configs[resource].entries[LAG].value


def key_id_in(path: str) -> str:
    return fingerprint(unseal(Path(path).read_bytes(), "r").public_key)


def report_in(path: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(unseal(Path(path).read_bytes(), "r").body)
    return report


def bounds_in(report: str) -> list[dict[str, int]]:
    bounds: list[dict[str, int]] = report_in(report)["asked"]["bounds"]
    return bounds


@pytest.fixture
def erase(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Erases:
    return Erases(node, tmp_path, capsys)


NOW = ("--wait", "0")
KEYS = ("--topic", "t", "--key", "k1", "--key", "k3")


async def test_a_dry_run_only_says(erase: Erases, capsys: pytest.CaptureFixture[str]) -> None:
    told = await erase(*KEYS, "--dry-run")
    [row] = told.rows
    assert (told.code, row["keys"], row["tombstones"]) == (0, 2, 4)
    assert row["setting"] == f"{LAG}=1000"
    assert row["tombstones_gone_ms"] - row["values_gone_ms"] > 2 * 86_400_000
    assert await erase.ends("t") == [5, 5]
    assert await erase.lag("t") == FOREVER
    assert not erase.order.exists()
    nothing = await erase("--topic", "t", "--key", "never", "--dry-run")
    assert (nothing.rows[0]["tombstones"], nothing.rows[0]["setting"]) == (0, None)
    assert (row["never_seen"], nothing.rows[0]["never_seen"]) == (0, 1)
    host = erase._node.services.address
    words = ["erase", *KEYS, "--replica", str(erase.folder / "data"), "--dry-run"]
    at = ["--bootstrap-server", f"{host.host}:{host.port}"]
    assert await asyncio.to_thread(main, [*words, *at]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["topic", "keys"]
    assert line.split()[:5] == ["t", "2", "0", "4", f"{LAG}=1000"]


async def test_a_dry_run_changes_no_setting_for_what_tables_have(erase: Erases) -> None:
    """Rounds do nothing about that."""
    rows = erase.folder / "table" / "partition=0" / "a.parquet"
    rows.parent.mkdir(parents=True)
    pq.write_table(pa.table({"key": [b"never"]}), rows)
    written(erase.folder / "table" / EXPORT_STATE, json.dumps({"topic": "t"}).encode())
    table = ("--table", str(erase.folder / "table"))
    told = await erase("--topic", "t", "--key", "never", *table, "--dry-run")
    [row] = told.rows
    assert (row["never_seen"], row["tombstones"], row["setting"]) == (0, 0, None)


async def test_a_terminal_is_asked_once(erase: Erases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind by who says no; an order that was given goes on without a word."""
    shown = at_terminal(monkeypatch, "\n")
    told = await erase(*KEYS, *NOW)
    assert (told.code, told.rows) == (1, [])
    assert shown.getvalue() == "erase 2 keys of t from all replicas for good? [y/N] "
    assert not erase.order.exists()
    assert await erase.ends("t") == [5, 5]
    at_terminal(monkeypatch, "y\n")
    assert (await erase(*KEYS, *NOW)).rows[0]["verdict"] == "remains"
    shown = at_terminal(monkeypatch, "")
    assert (await erase(*KEYS, *NOW)).rows[0]["verdict"] == "remains"
    assert "[y/N]" not in shown.getvalue()


async def test_tombstones_are_written_once_and_settings_put_back(erase: Erases) -> None:
    told = await erase(*KEYS, *NOW, "--deadline", "30d")
    [row] = told.rows
    assert (told.code, row["verdict"], row["deadline"]) == (1, "remains", "open")
    assert (row["records"], row["tombstones_written"]) == (4, 4)
    assert await erase.ends("t") == [7, 7]
    assert f"{LAG}=1000 until the values are gone (was the broker's default)" in told.err
    assert f"{LAG} is as it was" in told.err
    assert await erase.lag("t") == FOREVER
    assert bounds_in(row["proof"]) == [
        {"partition": n, "offset": 5, "leader_epoch": 0} for n in (0, 1)
    ]
    again = await erase(*KEYS, *NOW, "--deadline", "30d")
    assert (again.code, again.rows[0]["tombstones_written"]) == (1, 0)
    assert again.rows[0]["proof"].endswith("t.proof-2.json")
    assert again.rows[0]["deadline_ms"] == row["deadline_ms"]
    assert await erase.ends("t") == [7, 7]


async def test_people_are_told_in_words(
    erase: Erases, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    await erase(*KEYS, *NOW, "--deadline", "30d")
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"v0", b"back")))
    at = f"{node.services.address.host}:{node.services.address.port}"
    where = ["--replica", str(erase.folder / "data"), "--order", str(erase.order)]
    words = ["erase", *KEYS, *NOW, *where, "--bootstrap-server", at]
    assert await asyncio.to_thread(main, words) == 1
    first, remain, *reasons, later, deadline = capsys.readouterr().out.splitlines()
    assert first == f"t: remains, {erase.order}/t.proof-2.json"
    assert remain == "  4 records and 4 tombstones remain"
    assert reasons[0].startswith("  2 records with key 1 in ")
    assert later == "  1 records were written since the order was given, and stay"
    assert deadline == "  the deadline is in 30.0 d"


async def test_what_was_written_since_stays(erase: Erases, node: Node) -> None:
    """Of the value that came back nothing is erased, and nothing speaks against the proof."""
    await erase(*KEYS, *NOW)
    async with await connect(node) as connection:
        await produce(connection, "t", (0, batch_of(b"v0", b"back")))
    told = await erase(*KEYS, *NOW)
    [row] = told.rows
    assert (row["records"], row["later"], row["tombstones_written"]) == (4, 1, 0)
    assert await erase.ends("t") == [9, 7]


async def test_keys_that_are_nowhere_are_told_apart_from_erased_ones(erase: Erases) -> None:
    words = ("--topic", "t", "--key", "never", "--deadline", "30d")
    told = await erase(*words)
    [row] = told.rows
    assert (told.code, row["verdict"], row["deadline"]) == (1, "never seen", "met")
    assert row["never_seen"] == 1
    assert "t: 1 of 1 keys are in no file (key 1): gone before the order, never there" in told.err
    assert await erase.ends("t") == [5, 5]
    assert LAG not in told.err
    report = report_in(row["proof"])
    assert report["verdict"] == {"state": "never seen", "reasons": [], "never_seen": [0]}
    assert order_in(erase.order).topics[0].seen == ()


async def test_a_key_that_is_nowhere_is_told_beside_others(erase: Erases) -> None:
    told = await erase(*KEYS, "--key", "never", *NOW)
    [row] = told.rows
    assert (row["verdict"], row["never_seen"]) == ("remains", 1)
    assert "1 of 3 keys are in no file (key 3)" in told.err
    part = order_in(erase.order).topics[0]
    assert part.seen == part.keys[:2]
    # What the order has seen, the next run knows of, though nothing of it is left by then.
    order = order_in(erase.order).with_topic(replace(part, seen=part.keys))
    save_order(RealFs(), erase.order, order)
    told = await erase(*KEYS, "--key", "never", *NOW)
    assert (told.rows[0]["never_seen"], "in no file" in told.err) == (0, False)


async def test_paths_are_absolute_so_that_a_proof_is_checked_from_anywhere(
    erase: Erases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = await erase("--topic", "t", "--key", "never", replica="../" + tmp_path.name + "/data")
    proof = told.rows[0]["proof"]
    report = report_in(proof)
    assert [one["path"] for one in report["replicas"]] == [str(tmp_path / "data")]
    assert report["key_id"] == key_id_in(proof)
    assert [len(report[name]) for name in ("cluster_ids", "topic_ids")] == [1, 1]
    monkeypatch.chdir("/")
    words = ["prove-erased", "--check", proof, "--key", "never"]
    assert await asyncio.to_thread(main, words) == 1  # as never seen as it was


async def test_a_deadline_that_is_past_is_missed_even_if_all_is_gone(erase: Erases) -> None:
    words = ("--topic", "t", "--key", "never", "--deadline", "2020-01-01T00:00:00Z")
    told = await erase(*words)
    row = told.rows[0]
    assert (told.code, row["verdict"], row["deadline"]) == (1, "never seen", "missed")
    for text in ("2021-01-01T00:00:00Z", "20210101T000000Z"):
        other = await erase(*words[:-1], text)
        assert (other.code, "has another one" in other.err) == (2, True)
    for text in ("20200101T000000Z", "30d"):  # the same, and what nobody could give again
        assert (await erase(*words[:-1], text)).rows[0]["deadline_ms"] == row["deadline_ms"]


def order_in(folder: Path) -> Order:
    order = load_order(folder)
    assert order is not None
    return order


async def test_a_proven_order_is_not_missed_when_it_is_run_again(erase: Erases, node: Node) -> None:
    words = ("--topic", "t", "--key", "v9", "--leave-tombstones", "--deadline", "30d")
    assert (await erase(*words)).rows[0]["deadline"] == "met"
    order = order_in(erase.order)
    proven_ms = order.topics[0].values_proven_ms
    assert proven_ms is not None
    save_order(RealFs(), erase.order, replace(order, deadline_ms=proven_ms))
    again = await erase(*words)
    [row] = again.rows
    assert (again.code, row["verdict"], row["deadline"]) == (1, "never seen", "met")
    assert (row["proven_ms"], row["ended_ms"] > proven_ms) == (proven_ms, True)
    # That nothing is in a tombstone either is proven only now, too late.
    full = await erase(*words[:4], *words[5:])
    assert (full.rows[0]["verdict"], full.rows[0]["deadline"]) == ("never seen", "missed")
    # And what was found again was not gone.
    found = replace(order.topics[0], bounds=(Bound(0, 9), Bound(1, 9)))
    save_order(RealFs(), erase.order, replace(order, deadline_ms=proven_ms, topics=(found,)))
    async with await connect(node) as connection:
        keyed = build_batch([NewRecord(b"v9", b"back")])
        await produce(connection, "t", (0, keyed))
    [row] = (await erase(*words, *NOW)).rows
    assert (row["verdict"], row["deadline"], row["proven_ms"]) == ("remains", "missed", None)
    assert order_in(erase.order).topics[0].values_proven_ms is None


async def test_a_table_of_several_topics(erase: Erases) -> None:
    """min.compaction.lag.ms is a promise: rounds are brought on no sooner."""
    path = erase.folder / "gone.csv"
    path.write_text("topic,key,why\nt,k1,x\nu,k2,x\nu,never,x\n")
    told = await erase("--keys", str(path), *NOW)
    by_topic = {row["topic"]: row for row in told.rows}
    assert told.code == 1
    assert {t: row["tombstones_written"] for t, row in by_topic.items()} == {"t": 2, "u": 1}
    assert f"u: {LAG}=7000 until" in told.err
    order = load_order(erase.order)
    assert order is not None
    assert [(part.topic, len(part.keys)) for part in order.topics] == [("t", 1), ("u", 2)]


async def test_settings_are_kept_if_asked(erase: Erases) -> None:
    told = await erase(*KEYS, *NOW, "--keep-settings")
    assert (told.code, LAG in told.err) == (1, False)


class Losing:
    """Between a client and a broker: answers to changes of settings are lost, the changes made."""

    def __init__(self, to: Address, losses: int) -> None:
        self._to, self.losses = to, losses

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
        finally:
            await stop_serving(server)

    async def _serve(self, asks: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection(self._to.host, self._to.port)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await framed(asks)
                writer.write(request)
                answer = await framed(reader)
                if self.losses and int.from_bytes(request[4:6]) == INCREMENTAL_ALTER_CONFIGS.key:
                    self.losses -= 1
                    break
                answers.write(answer)
        writer.close()
        answers.close()


async def framed(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size))


async def test_a_setting_is_put_back_though_the_answer_was_lost(
    erase: Erases, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    losing = Losing(node.services.address, losses=1)
    async with losing.running() as address:
        told = await Erases(node, erase.folder, capsys, address)(*KEYS, *NOW)
    assert (told.code, losing.losses) == (1, 0)
    assert f"{LAG}=1000 may have been set or not, and is tried again" in told.err
    assert f"{LAG}=1000 until the values are gone" in told.err
    assert (await erase.lag("t"), order_in(erase.order).topics[0].forced) == (FOREVER, None)


async def test_an_order_remembers_a_setting_of_which_nothing_is_known(
    erase: Erases, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run after it puts it back."""
    async with Losing(node.services.address, losses=100).running() as address:
        told = await Erases(node, erase.folder, capsys, address)(*KEYS, *NOW)
    assert told.err.count("may have been set or not") == 1
    forced = order_in(erase.order).topics[0].forced
    assert forced is not None
    await set_lag(node, forced.value)  # as if it had come through at last
    told = await erase(*KEYS, *NOW)
    assert (await erase.lag("t"), order_in(erase.order).topics[0].forced) == (FOREVER, None)


@pytest.mark.parametrize("now", [None, "5000", "1000"])
async def test_rounds_are_brought_on_again_by_whoever_goes_on(
    now: str | None, erase: Erases, node: Node
) -> None:
    """Killed before the setting was changed, or somebody else has changed it since, or after it."""
    await erase(*KEYS, *NOW)
    order = order_in(erase.order)
    part = replace(order.topics[0], forced=Forced(LAG, None, "1000"))
    save_order(RealFs(), erase.order, order.with_topic(part))
    if now is not None:
        await set_lag(node, now)
    told = await erase(*KEYS, *NOW)
    was = "5000" if now == "5000" else "the broker's default"
    assert f"{LAG}=1000 until the values are gone (was {was})" in told.err
    assert await erase.lag("t") == ("5000" if now == "5000" else FOREVER)
    assert order_in(erase.order).topics[0].forced is None


async def set_lag(node: Node, value: str) -> None:
    async with await connect(node) as connection:
        changes = {Resource(TOPIC, "t"): [ConfigChange(LAG, value)]}
        assert not any((await Admin(connection).incremental_alter_configs(changes)).values())


@pytest.mark.parametrize("may_write", [True, False])
async def test_who_may_not_change_settings_erases_all_the_same(
    may_write: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may not write does not, and is told so; no setting is changed for nothing."""
    operations = [Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS]
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" '
        'password="b";\n'
    )
    async with running_node(tmp_path / "data", WITH_ACLS) as running:
        await create(running, "t", cleanup_policy="compact")
        async with await connect(running) as connection:
            await produce(connection, "t", (0, batch_of(b"a", b"b")))
        operations += [Operation.WRITE] if may_write else []
        await set_acls(running, [allow(one, ResourceType.TOPIC, "t") for one in operations])
        erase = Erases(running, tmp_path, capsys, address_of(running))
        words = ("--command-config", str(config), "--topic", "t", "--key", "k1")
        told = await erase(*words, *NOW)
        assert await erase.lag("t") == FOREVER
        order = load_order(erase.order)
        assert order is not None
        assert order.topics[0].forced is None
        assert "AUTHORIZATION_FAILED" in told.err
        if may_write:
            assert f"rounds come when they are due; {LAG} cannot be set" in told.err
            assert (told.code, told.rows[0]["tombstones_written"]) == (1, 1)
            # What a run before has set is not forgotten because this one may not put it back.
            part = replace(order.topics[0], forced=Forced(LAG, None, "1000"))
            save_order(RealFs(), erase.order, order.with_topic(part))
            await set_lag(running, "1000")
            assert f"{LAG} is still 1000" in (await erase(*words, *NOW)).err
            assert order_in(erase.order).topics[0].forced == part.forced
        else:
            assert "t: tombstones cannot be written" in told.err
            assert (told.code, told.rows) == (3, [])
            assert await erase.ends("t") == [2]


async def test_what_a_tombstone_does_not_remove_is_refused(erase: Erases) -> None:
    told = await erase("--topic", "plain", "--key", "k1", *NOW)
    assert (told.code, "cleanup.policy=delete" in told.err) == (2, True)
    assert (await erase("--topic", "nowhere", "--key", "k1", *NOW)).code == 3
    assert not erase.order.exists()


async def test_all_replicas_must_be_given_and_be_there(erase: Erases) -> None:
    (erase.folder / "other").mkdir()
    (erase.folder / "other" / "meta.properties").write_text("version=1\n")
    told = await erase(*KEYS, *NOW, replica=str(erase.folder / "other"))
    assert told.code == 2
    assert "t-0 has 1 replicas (on brokers 0), and 0 of the given directories have it" in told.err
    assert not erase.order.exists()
    # Nor is it what another broker has, which has no replica any more.
    no_sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(erase.folder / "data", erase.folder / "another", ignore=no_sockets)
    meta = erase.folder / "another" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=0", "node.id=7"))
    told = await erase(*KEYS, *NOW, replica=str(erase.folder / "another"))
    assert (told.code, "and 0 of the given directories have it" in told.err) == (2, True)
    assert await erase.ends("t") == [5, 5]


@pytest.mark.parametrize("option", ["--replica", "--spark-local-dir"])
async def test_a_directory_that_is_not_there_is_refused_before_the_order(
    erase: Erases, option: str
) -> None:
    """Waiting does not mend a name; nor is it one of a broker that has none of the topic."""
    told = await erase(*KEYS, option, str(erase.folder / "nope"))
    assert (told.code, told.rows) == (2, [])
    assert f"{option} {erase.folder / 'nope'}: cannot be listed: No such" in told.err.replace(
        "no such directory", "No such file or directory"
    )
    if option == "--replica":
        (erase.folder / "empty").mkdir()
        told = await erase(*KEYS, option, str(erase.folder / "empty"))
        assert (told.code, "is no log directory: it has neither" in told.err) == (2, True)
    assert not erase.order.exists()
    assert await erase.ends("t") == [5, 5]
    await erase(*KEYS, *NOW)  # nor when an order is gone on with
    told = await erase(*KEYS, option, str(erase.folder / "nope"))
    assert (told.code, told.rows) == (2, [])


async def test_an_order_is_gone_on_with_as_it_was_given(erase: Erases) -> None:
    await erase(*KEYS, *NOW)
    other = await erase("--topic", "t", "--key", "k2", *NOW)
    assert (other.code, "other keys of topic t" in other.err) == (2, True)
    async with await connect(erase._node) as connection:
        await Admin(connection).delete_topic("t")
    await create(erase._node, "t", partitions=2, cleanup_policy="compact")
    told = await erase(*KEYS, *NOW)
    assert (told.code, "deleted and made again" in told.err) == (2, True)


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """By another process, whose pid it gives: locks are a process's."""
    code = (
        "import sys; from pathlib import Path; from lapse.base.fs import RealFs\n"
        "from lapse.lifecycle.erase.order import locked\n"
        "with locked(RealFs(), Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


async def test_an_order_is_one_process_s_at_a_time(erase: Erases) -> None:
    with held(erase.order) as pid:
        told = await erase(*KEYS, *NOW)
        assert (told.code, told.rows) == (3, [])
        assert f"{erase.order} is in use: process {pid} holds" in told.err
        assert (await erase(*KEYS, "--dry-run")).code == 0, "which only looks"
    assert await erase.ends("t") == [5, 5]
    assert (await erase(*KEYS, *NOW)).code == 1
    assert await erase.ends("t") == [7, 7]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--topic", "t"), "nothing to erase"),
        (("--key", "k"), "--topic"),
        (("--topic", "a/b", "--key", "k"), "--topic"),
        (("--topic", "t", "--key", "k", "--deadline", "soon"), "--deadline soon"),
        (("--topic", "t", "--key", "k", "--wait", "-1"), "--wait -1"),
        (("--keys", "lines.txt"), "no table with a column of topics"),
    ],
)
def test_wrong_usage_is_told_in_a_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ("--replica", str(tmp_path), "--order", str(tmp_path / "order"))
    assert main(["erase", *where, *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


@pytest.mark.parametrize("missing", ["--replica", "--order"])
def test_what_must_be_given(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"--replica": ".", "--order": "o", "--topic": "t", "--key": "k"}
    del words[missing]
    assert main(["erase", *(word for pair in words.items() for word in pair)]) == 2
    assert missing in capsys.readouterr().err


def test_no_broker_is_an_environment_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "meta.properties").touch()
    where = ("--replica", str(tmp_path), "--order", str(tmp_path / "order"))
    assert main(["erase", *KEYS, *where, "--bootstrap-server", "127.0.0.1:1"]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "deadline", "code"),
    [
        ("proven", None, 0),
        ("proven", "missed", 1),
        ("never seen", "met", 1),
        ("remains", "open", 1),
        ("not proven", None, 3),
    ],
)
def test_exit_codes(verdict: str, deadline: str | None, code: int) -> None:
    assert _exit_code(Row("t", verdict, 0, 0, 0, 0, "", 0, 0, None, deadline)) == code
