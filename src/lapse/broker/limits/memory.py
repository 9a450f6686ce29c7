"""Bytes of requests that are not handled yet, and of answers that are not read yet, of all clients.

`RequestBytes` counts the bytes that connections received and still hold. Where that is more than
`queued.max.request.bytes`, a connection in the middle of a large frame is not read from until there
is room again; nor where all partial frames together hold `PARTIAL_BYTES_MAX`, since an incomplete
frame is of no use yet, and sixty unknown clients may each begin the largest one. Bytes count as
they arrive, so that an announced size that never arrives takes no room (Kafka reserves whole
frames). Then partial frames could hold all the room and none ever be complete. So where frames
wait, connections that send nothing, or too slowly, are closed; and where partial frames hold most,
the one that lacks the least is read on all the same. Small frames are always read, but each
connection holds few of them.

`AnswerBytes` counts the memory of responses while they are sent; slices of files do not count: the
kernel sends them. It grows when clients do not read. When it is more than
`lapse.queued.max.response.bytes`, the connection whose response has been on its way for longest is
closed. No more than that is made at a time either: responses that threads make in parallel are all
in memory before the first of them is sent.

Both are used only in the event loop. They see a connection by a protocol of what it must do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

# Of all large frames that are not complete. What arrives meanwhile comes on top: a read of each
# connection, and the frame that is read on without room.
PARTIAL_BYTES_MAX = 64 << 20
# While frames wait for room: how long nothing may come of one in part that does not wait, and how
# long the one may take that is read on without room, unless it comes at some speed.
SILENT_SECONDS_MAX = 5.0
URGENT_SECONDS_MAX = 10.0
URGENT_BYTES_A_SECOND = 1 << 20
LOOK_SECONDS = 1.0


class Sender(Protocol):
    """A connection with a part of a large frame."""

    @property
    def missing_bytes(self) -> int:
        """What its frame lacks."""

    @property
    def silent_seconds(self) -> float:
        """How long nothing came of it."""

    def go_on(self) -> None:
        """There is room: read from it again."""

    def give_up(self, reason: str) -> None:
        """Close it."""


class Taker(Protocol):
    """A connection with an answer on its way."""

    def give_up(self, reason: str) -> None:
        """Close it."""


class RequestBytes:
    """What requests hold.

    Attributes:
        whole: bytes of frames that are complete and not handled yet.
        partial: bytes of large frames that are not complete.
    """

    def __init__(self, bytes_max: int) -> None:
        self.whole = self.partial = 0
        self._bytes_max = bytes_max
        self._partial_max = min(bytes_max, PARTIAL_BYTES_MAX)
        self._reading: dict[Sender, None] = {}  # those with a large frame in part,
        self._waiting: dict[Sender, None] = {}  # and which of them may not read on
        self._urgent: Sender | None = None
        self._urgent_since = 0.0
        self._urgent_missing = 0  # what it lacked then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_short(self) -> bool:
        """Whether there is no room."""
        return self._room <= 0

    @property
    def _room(self) -> int:
        """For frames in part."""
        in_all = self._bytes_max - self.whole - self.partial
        return min(in_all, self._partial_max - self.partial)

    def change(self, whole: int, partial: int) -> None:
        """Some connection holds that much more, or less."""
        self.whole += whole
        self.partial += partial
        self._look()

    def may_read(self, sender: Sender) -> bool:
        """Whether a connection may be read on; if not, it is notified when it may."""
        self._reading[sender] = None
        if not self.is_short or sender is self._urgent:
            return True
        if self._may_hurry():
            self._hurry(sender)
            return True
        self._waiting[sender] = self._reading.pop(sender)
        if self._timer is None:  # never at once: it would notify before the caller has this result
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._watch)
        return False

    def done(self, sender: Sender) -> None:
        """Its frame is complete, or will never be."""
        self._reading.pop(sender, None)
        self._waiting.pop(sender, None)
        if sender is self._urgent:
            self._urgent = None
            self._look()

    def _look(self) -> None:
        if not self._waiting:
            return
        if not self.is_short:
            self._let_in()
        elif self._may_hurry():
            least = min(self._waiting, key=lambda waiting: waiting.missing_bytes)
            self._hurry(least)
            self._let_go_on(least)

    def _let_go_on(self, sender: Sender) -> None:
        self._reading[sender] = self._waiting.pop(sender)
        sender.go_on()

    def _may_hurry(self) -> bool:
        """What is whole will be handled and make room; it is what is not that may never move."""
        return self._urgent is None and 2 * self.whole <= self._bytes_max

    def _let_in(self) -> None:
        """As many as there is room for, those that wait longest first."""
        room = self._room
        while self._waiting and room > 0:
            sender = next(iter(self._waiting))
            room -= sender.missing_bytes
            self._let_go_on(sender)

    def _hurry(self, sender: Sender) -> None:
        self._urgent = sender
        self._urgent_missing = sender.missing_bytes
        self._urgent_since = asyncio.get_running_loop().time()

    def _is_late(self, urgent: Sender, now: float) -> bool:
        took = now - self._urgent_since
        came = self._urgent_missing - urgent.missing_bytes
        return took >= URGENT_SECONDS_MAX and came < took * URGENT_BYTES_A_SECOND

    def _watch(self) -> None:
        """As long as some wait: close who keeps them waiting without getting on."""
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        slow = [s for s in self._reading if s.silent_seconds >= SILENT_SECONDS_MAX]
        urgent = self._urgent
        if urgent is not None and urgent not in slow and self._is_late(urgent, loop.time()):
            slow.append(urgent)
        for sender in slow:
            sender.give_up(
                f"its frame lacks {sender.missing_bytes} bytes that do not come, and others wait: "
                f"{self._in_use()} are in use"
            )
        self._timer = loop.call_later(LOOK_SECONDS, self._watch)

    def _in_use(self) -> str:
        if self.whole + self.partial >= self._bytes_max:
            return f"queued.max.request.bytes ({self._bytes_max})"
        return f"the {self._partial_max} bytes that frames in part may hold"


class AnswerBytes:
    """What answers hold that are on their way.

    Attributes:
        held: bytes, of all connections.
    """

    def __init__(self, bytes_max: int) -> None:
        self.held = 0
        self._bytes_max = bytes_max
        self._takers: dict[Taker, int] = {}
        self._making = 0
        self._makers: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether no response waits for its turn: a small one that is sent at once needs none."""
        return not self._makers

    async def reserve(self, size: int) -> None:
        """Wait until that much may be made; one alone may be as large as it likes.

        What was made is to be sent after `made` before anything is awaited.
        """
        if not self._makers and self._may_make(size):
            self._making += size
            return
        turn = asyncio.get_running_loop().create_future()
        self._makers.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had been let in
                self.made(size)
            raise

    def made(self, size: int) -> None:
        """What was reserved is made."""
        self._making -= size
        while self._makers and self._may_make(self._makers[0][0]):
            size, turn = self._makers.popleft()
            if not turn.done():
                self._making += size
                turn.set_result(None)

    def _may_make(self, size: int) -> bool:
        return not self._making or self._making + size <= self._bytes_max

    def begin(self, taker: Taker, size: int) -> None:
        """An answer is sent; a connection sends one at a time."""
        self._takers[taker] = size
        self.held += size
        while self.held > self._bytes_max and len(self._takers) > 1:
            oldest = next(iter(self._takers))
            self.end(oldest)
            oldest.give_up(
                f"it does not read its answer, and lapse.queued.max.response.bytes "
                f"({self._bytes_max}) are in use"
            )

    def end(self, taker: Taker) -> None:
        """It was sent, or never will be."""
        self.held -= self._takers.pop(taker, 0)
