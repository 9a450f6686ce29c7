"""Who is read on, who waits, and who is given up where requests and answers take all the room."""

from __future__ import annotations

import asyncio

import pytest

from lapse.broker.limits import memory
from lapse.broker.limits.memory import AnswerBytes, RequestBytes

ROOM = 1000


class Peer:
    """A connection, seen from here: a frame that comes in parts, and what it was told."""

    def __init__(self, room: RequestBytes, size: int) -> None:
        self.room = room
        self.size = size
        self.came = 0
        self.silent_seconds = 0.0
        self.reads = True
        self.gave_up = ""

    @property
    def missing_bytes(self) -> int:
        return self.size - self.came

    def go_on(self) -> None:
        self.reads = True

    def give_up(self, reason: str) -> None:
        self.gave_up = reason
        self.room.change(0, -self.came)
        self.room.done(self)

    def receive(self, count: int) -> None:
        """So many bytes come; the last ones make the frame whole."""
        assert self.reads
        self.came += count
        if self.came < self.size:
            self.room.change(0, count)
            self.reads = self.room.may_read(self)
        else:
            self.room.change(self.size, count - self.size)
            self.room.done(self)

    def handled(self) -> None:
        self.room.change(-self.size, 0)


async def test_frames_wait_where_whole_ones_take_the_room() -> None:
    room = RequestBytes(ROOM)
    whole = Peer(room, ROOM)
    whole.receive(ROOM)
    peers = [Peer(room, 400) for _ in range(4)]
    for peer in peers:
        peer.receive(1)
    assert room.is_short
    assert not any(peer.reads for peer in peers)
    whole.handled()
    # The longest waiting first, as many as there is room for.
    assert [peer.reads for peer in peers] == [True, True, True, False]
    assert (room.whole, room.partial) == (0, 4)


async def test_of_frames_in_part_one_is_always_read_on() -> None:
    """However little room there is, all of them are whole in the end, and none has it all."""
    room = RequestBytes(ROOM)
    peers = [Peer(room, size) for size in (900, 500, 700, 300)]
    turns, most = [], 0
    for peer in peers:
        peer.receive(250)
    assert [peer.reads for peer in peers] == [True, True, True, True]  # the last fills it: urgent
    while any(peer.missing_bytes for peer in peers):
        peer = next(p for p in peers if p.reads and p.missing_bytes)
        peer.receive(min(50, peer.missing_bytes))
        most = max(most, room.whole + room.partial)
        if not peer.missing_bytes:
            turns.append(peer.size)
            peer.handled()
    assert sorted(turns) == [300, 500, 700, 900]
    assert most <= ROOM + 900
    assert (room.whole, room.partial) == (0, 0)


async def test_the_one_that_lacks_least_is_next() -> None:
    room = RequestBytes(100)
    first, far, near = Peer(room, 300), Peer(room, 900), Peer(room, 200)
    for peer in (first, far, near):
        peer.receive(150)
    assert [peer.reads for peer in (first, far, near)] == [True, False, False]
    first.receive(150)
    assert [peer.reads for peer in (far, near)] == [False, False]  # what is whole will make room
    first.handled()
    assert [peer.reads for peer in (far, near)] == [False, True]


async def gave_up(peer: Peer) -> str:
    async with asyncio.timeout(10):
        while not peer.gave_up:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    return peer.gave_up


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(memory, "URGENT_SECONDS_MAX", 0.02)


@pytest.mark.usefixtures("quick")
async def test_one_that_takes_too_long_is_given_up_if_others_wait() -> None:
    room = RequestBytes(100)
    slow = Peer(room, 500)
    slow.receive(400)
    await asyncio.sleep(0.1)
    assert not slow.gave_up  # nobody waits
    slow.receive(1)
    other = Peer(room, 300)
    other.receive(10)
    assert not other.reads
    reason = await gave_up(slow)
    assert "queued.max.request.bytes (100)" in reason
    assert "lacks 99 bytes" in reason
    assert (other.reads, room.partial) == (True, 10)


@pytest.mark.usefixtures("quick")
async def test_one_that_comes_at_some_speed_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However large it is: the time that is allowed is for those of which little comes."""
    monkeypatch.setattr(memory, "URGENT_BYTES_A_SECOND", 1)
    room = RequestBytes(100)
    large = Peer(room, 500)
    large.receive(100)
    other = Peer(room, 300)
    other.receive(10)
    for _ in range(20):
        await asyncio.sleep(0.005)
        large.receive(10)
    assert (large.gave_up, other.reads) == ("", False)
    large.receive(200)
    large.handled()
    assert other.reads


async def test_frames_in_part_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much room there is: nobody can do anything with them yet."""
    monkeypatch.setattr(memory, "PARTIAL_BYTES_MAX", 100)
    room = RequestBytes(ROOM)
    first, second, third = (Peer(room, 200) for _ in range(3))
    for peer in (first, second, third):
        peer.receive(60)
    assert [peer.reads for peer in (first, second, third)] == [True, True, False]
    whole = Peer(room, 500)
    whole.receive(500)  # at once: it is in nobody's way
    assert room.partial == 180
    whole.handled()
    second.receive(140)
    assert third.reads


@pytest.mark.usefixtures("quick")
async def test_those_of_which_nothing_comes_are_given_up_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But not one that waits: it may not be heard."""
    monkeypatch.setattr(memory, "URGENT_SECONDS_MAX", 60.0)  # this is not about one that is slow
    room = RequestBytes(1000)
    silent = [Peer(room, 500) for _ in range(3)]
    for peer in silent:
        peer.receive(300)
        peer.silent_seconds = memory.SILENT_SECONDS_MAX
    busy, waiting = Peer(room, 900), Peer(room, 900)
    busy.receive(800)
    waiting.receive(800)
    assert (busy.reads, waiting.reads) == (True, False)  # busy is urgent
    waiting.silent_seconds = memory.SILENT_SECONDS_MAX
    for peer in silent:
        await gave_up(peer)
    assert (busy.gave_up, waiting.gave_up) == ("", "")
    assert room.partial == 1600


async def test_one_that_leaves_waits_no_longer() -> None:
    room = RequestBytes(100)
    first, second, third = (Peer(room, 500) for _ in range(3))
    for peer in (first, second, third):
        peer.receive(100)
    second.give_up("it left")
    first.give_up("it left")
    assert third.reads
    assert (room.whole, room.partial) == (0, 100)


def test_who_takes_longest_loses_its_answer() -> None:
    answers = AnswerBytes(100)
    peers = [Peer(RequestBytes(0), 0) for _ in range(4)]
    for peer in peers[:3]:
        answers.begin(peer, 40)
    assert [bool(peer.gave_up) for peer in peers[:3]] == [True, False, False]
    assert "lapse.queued.max.response.bytes (100)" in peers[0].gave_up
    answers.end(peers[0])
    assert answers.held == 80
    answers.begin(peers[3], 500)  # a single one may be as large as it likes
    assert [bool(peer.gave_up) for peer in peers] == [True, True, True, False]
    answers.end(peers[3])
    assert answers.held == 0


async def test_no_more_is_made_at_a_time_than_there_is_room_for() -> None:
    answers = AnswerBytes(100)
    await answers.reserve(500)  # alone
    turns = [asyncio.create_task(answers.reserve(size)) for size in (60, 60, 40)]
    await asyncio.sleep(0)
    assert not any(turn.done() for turn in turns)
    turns[0].cancel()
    answers.made(500)
    await asyncio.sleep(0)
    assert [turn.done() for turn in turns] == [True, True, True]
    fourth = asyncio.create_task(answers.reserve(1))
    await asyncio.sleep(0)
    answers.made(40)
    fourth.cancel()  # after it was let in
    await asyncio.gather(fourth, turns[0], return_exceptions=True)
    answers.made(60)
    await asyncio.wait_for(answers.reserve(10_000), 10)


async def test_who_needs_little_room_does_not_overtake() -> None:
    """Else who needs much would wait for as long as others come."""
    answers = AnswerBytes(100)
    await answers.reserve(50)
    much = asyncio.create_task(answers.reserve(90))
    await asyncio.sleep(0)
    little = asyncio.create_task(answers.reserve(10))
    await asyncio.sleep(0)
    assert (much.done(), little.done()) == (False, False)
    answers.made(50)
    await asyncio.wait_for(asyncio.gather(much, little), 10)
