"""Three brokers, all of their code, over a store, a network, disks and clocks that are virtual.

A seed is a story: clients of several kinds write, read, delete and run transactions while things
are killed, cut, filled and set wrong (`cluster.faults`), and rounds clean what is due. Then all
is mended, and everything that any client was told must be true (`cluster.checks`). A story that
ends badly is told whole; `cluster.life` tells it again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Writer
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.deletion import delete_records_before
from lapse.client.producer import Producer, ProducerConfig
from lapse.coordination.partitioning import partition_for
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.log.markers import EndMarker
from lapse.records.batch import scan_prefix
from tests.conftest import SCALE
from tests.simulation.cluster.life import live, logs_of, started
from tests.simulation.cluster.loop import passes
from tests.simulation.cluster.world import World
from tests.support.log.logs import bytes_between

PARTS = 20


@pytest.mark.parametrize("what", ["marker", "verification"])
def test_brokers_that_take_each_other_for_the_leader_do_not_ask_in_a_circle(
    tmp_path: Path, what: str
) -> None:
    """Each waited for the other, over the connection that it was asked by, until time was up."""
    world = World(tmp_path, 3)
    tp = TopicPartition(*(("log", 0) if what == "marker" else ("__transaction_state", 0)))

    async def story() -> None:
        await started(world)
        await world.until(world.is_whole, 30, "all are in sync")
        nodes = {n: one.node for n, one in world.machines.items() if one.node is not None}
        await nodes[1].services.transactions.require_topic()
        await world.until(lambda: all(n.services.partitions.state_of(tp) for n in nodes.values()),
                          30, "the topic is there")  # fmt: skip
        for n, other in ((1, 2), (2, 1)):
            states = nodes[n].services.partitions._states
            states[tp] = replace(states[tp], leader=other)
        transactions, begun = nodes[1].services.transactions, world.loop.time()
        if what == "marker":
            asking = transactions.markers.write(Writer(7, 0), EndMarker(True, 0), [tp])
            expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            name = next(f"x{n}" for n in range(99) if partition_for(f"x{n}", 2) == 0)
            asking = transactions.verify(name, ProducerIdAndEpoch(7, 0), [tp])
            expected = ErrorCode.NOT_COORDINATOR
        answer = await asyncio.get_running_loop().create_task(asking)
        assert answer == {tp: expected}
        assert world.loop.time() - begun < 1

    try:
        world.run(story)
    finally:
        world.close()


@pytest.mark.parametrize("early_s", [0, 4e-10, 9e-10, 2e-9])
def test_what_two_send_within_a_nanosecond_comes(tmp_path: Path, early_s: float) -> None:
    """The loop calls what is due within its clock's resolution: a word lay there for ever."""
    world, heard = World(tmp_path, 3), bytearray()
    world.loop.accepting[1] = lambda sock: world.loop.add_reader(
        sock, lambda: heard.extend(sock.recv(100))
    )

    async def story() -> None:
        transport, _ = await world.network.connect(world.loop, asyncio.Protocol, "host", 1)
        at_s = world.loop.time() + 1
        world.loop.call_at(at_s - early_s, lambda: None)
        transport._link._going.append((at_s, b"word"))
        world.loop.call_at(at_s, transport._link._pass_on)
        await passes(2)

    try:
        world.run(story)
        assert heard == b"word"
    finally:
        world.close()


def test_who_could_not_begin_after_a_power_cut_is_doubted_the_next_time_too(
    tmp_path: Path,
) -> None:
    """Its logs were opened and closed in order by then; what they had lost is lost all the same."""
    world = World(tmp_path, 3)
    tp, one = TopicPartition("log", 0), world.machines[1]

    async def story() -> None:
        await started(world)
        await world.until(world.is_whole, 30, "all are in sync")
        async with Producer(world.bootstrap, clock=world.clock) as producer:
            sent = [await producer.send("log", b"k", b"%d" % n, partition=0) for n in range(50)]
            assert [(await one).offset for one in sent] == [*range(50)]
        one.kill(power=True)
        for n in (2, 3):
            world.machines[n].kill()
        with socket.create_server(("127.0.0.1", one.port), reuse_port=False):
            one.start()
            await world.until(lambda: not one.is_up, 30, "its port is taken")
        one.start()
        await world.until(lambda: one.node is not None, 30, "it has begun")
        for n in (2, 3):
            world.machines[n].start()
        await world.until(world.is_whole, 90, "all are in sync again")
        for log in logs_of(world, tp).values():
            assert log.log_end_offset == 50

    try:
        world.run(story)
    finally:
        world.close()


async def send(
    world: World, bootstrap: str, records: int, acks: int, topic: str = "trimmed"
) -> None:
    config = ProducerConfig(acks=acks, enable_idempotence=False, delivery_timeout_ms=30_000)
    async with Producer(bootstrap, config, clock=world.clock) as producer:
        for n in range(records):
            await (await producer.send(topic, b"k%d" % n, b"v", partition=0))


async def begun(world: World, topic: str = "trimmed") -> None:
    """All are in sync, and have four records of a topic that they know."""
    await started(world)
    await world.until(world.is_whole, 30, "all are in sync")
    await passes(1)
    await send(world, world.bootstrap, 4, acks=-1, topic=topic)


def test_who_had_records_of_its_own_hears_what_was_deleted_though_nobody_writes_any_more(
    tmp_path: Path,
) -> None:
    """Its leader's first answer says where they part, and no more is taken of it."""
    world = World(tmp_path, 3)
    tp = TopicPartition("trimmed", 0)

    async def story() -> None:
        await started(world)
        await world.until(world.is_whole, 30, "all are in sync")
        await send(world, world.bootstrap, 4, acks=-1)
        old = world.machines[world.topics()["trimmed"].states[0].leader]
        others = [one for one in world.machines.values() if one is not old]
        ways = {(old.name, one.name) for one in others}
        world.network.hold(ways | {way[::-1] for way in ways})
        old.set_cut_off(is_cut_off=True)
        await send(world, f"127.0.0.1:{old.port}", 2, acks=1)
        await world.until(
            lambda: world.topics()["trimmed"].states[0].leader not in {-1, old.number}, 30, "led"
        )
        bootstrap = ",".join(f"127.0.0.1:{one.port}" for one in others)
        async with Cluster(parse_bootstrap(bootstrap)) as cluster:
            [deleted] = (await delete_records_before(cluster, {tp: 3}, 30_000)).values()
            assert (deleted.error, deleted.low_watermark) == (None, 3)
        old.set_cut_off(is_cut_off=False)
        world.network.free()
        await world.until(world.is_whole, 60, "all are in sync again")
        found = [(log.log_start_offset, log.log_end_offset) for log in logs_of(world, tp).values()]
        assert found == [(3, 4)] * 3

    try:
        world.run(story)
    finally:
        world.close()


@pytest.mark.parametrize("topic", ["trimmed", "table"])
def test_a_last_batch_that_came_back_with_another_offset_is_fetched_again(
    tmp_path: Path, topic: str
) -> None:
    """No checksum covers it, and no batch behind it contradicts it: its leader does."""
    world = World(tmp_path, 3)
    tp = TopicPartition(topic, 0)

    async def story() -> None:
        await begun(world, topic)
        leader = world.topics()[topic].states[0].leader
        one = world.machines[1 if leader != 1 else 2]
        one.kill()
        [path] = one.path.glob(f"*/{tp}/*.log")
        data = bytearray(path.read_bytes())
        *_, last = scan_prefix(data)[0]
        data[last["position"] + 7] += 2
        path.write_bytes(data)
        await send(world, world.bootstrap, 4, acks=-1, topic=topic)
        one.start()
        await world.until(world.is_whole, 60, "all are in sync again")
        await world.until(lambda: len(contents(world, tp)) == 1, 30, "all have the same")

    try:
        world.run(story)
    finally:
        world.close()


def test_a_last_batch_where_the_leader_ends_is_cut_off(tmp_path: Path) -> None:
    """The leader has nothing there, and an empty answer may also mean that others had the room."""
    world = World(tmp_path, 3)
    tp = TopicPartition("trimmed", 0)

    async def story() -> None:
        await begun(world)
        old = world.machines[world.topics()["trimmed"].states[0].leader]
        others = [one for one in world.machines.values() if one is not old]
        ways = {(old.name, one.name) for one in others}
        world.network.hold(ways | {way[::-1] for way in ways})
        old.set_cut_off(is_cut_off=True)
        await send(world, f"127.0.0.1:{old.port}", 1, acks=1)
        old.kill()
        await world.until(
            lambda: world.topics()["trimmed"].states[0].leader not in {-1, old.number}, 30, "led"
        )
        old.set_cut_off(is_cut_off=False)
        world.network.free()
        old.start()
        await world.until(world.is_whole, 60, "all are in sync again")
        logs = partial(logs_of, world, tp)
        await world.until(
            lambda: {log.log_end_offset for log in logs().values()} == {4}, 30, "all end there"
        )

    try:
        world.run(story)
    finally:
        world.close()


@pytest.mark.parametrize("start", [5, 7])
def test_a_last_batch_in_which_the_leaders_log_begins_is_compared_from_there(
    tmp_path: Path, start: int
) -> None:
    """The leader has nothing before it, and says so to who asks for that; or nothing at all."""
    world = World(tmp_path, 3)
    tp = TopicPartition("trimmed", 0)

    async def story() -> None:
        await begun(world)
        async with Producer(world.bootstrap, clock=world.clock) as producer:
            sent = [await producer.send("trimmed", b"k", b"v", partition=0) for _ in range(3)]
            assert [(await one).offset for one in sent] == [4, 5, 6]
        leader = world.machines[world.topics()["trimmed"].states[0].leader]
        others = [one for one in world.machines.values() if one is not leader]
        for one in others:
            one.kill()
        await world.until(
            lambda: world.topics()["trimmed"].states[0].isr == (leader.number,), 60, "it is alone"
        )
        ways = {(leader.name, one.name) for one in others}
        world.network.hold(ways | {way[::-1] for way in ways})
        for one in others:
            one.start()
        await world.until(lambda: all(one.node is not None for one in others), 30, "they are back")
        await passes(2)  # the leader knows it
        async with Cluster(parse_bootstrap(f"127.0.0.1:{leader.port}")) as cluster:
            [deleted] = (await delete_records_before(cluster, {tp: start}, 2_000)).values()
            assert deleted.error is not None, "they were there, and did not answer"
        world.network.free()
        await world.until(world.is_whole, 60, "all are in sync again")
        found = [(log.log_start_offset, log.log_end_offset) for log in logs_of(world, tp).values()]
        assert found == [(start, 7)] * 3

    try:
        world.run(story)
    finally:
        world.close()


def contents(world: World, tp: TopicPartition) -> set[bytes]:
    return {bytes_between(log, 0, log.log_end_offset) for log in logs_of(world, tp).values()}


def test_all_that_is_promised_happens(tmp_path: Path) -> None:
    """Of two worlds, the same each time: else none of it would have to be true."""
    committed = rounds = deleted = 0
    for seed in (900, 901):
        path = tmp_path / str(seed)
        path.mkdir()
        _, history = live(path, seed)
        committed += sum(one.ended is True for one in history.transactions.values())
        deleted += sum(history.deleted.values())
        rounds += len([*path.rglob("table-0/.lapse/ledger")])
    assert committed > 1
    assert deleted > 1
    assert rounds > 1


@pytest.mark.parametrize("part", range(PARTS))
def test_what_clients_were_told_is_true(
    tmp_path: Path,
    seed: int,
    scaled: Callable[[int], int],
    part: int,
) -> None:
    for n in range(scaled(500) if SCALE >= 1 else scaled(60)):  # 10,000 worlds, or 60
        path = tmp_path / str(n)
        path.mkdir()
        live(path, seed + n)
