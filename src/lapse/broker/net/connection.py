"""One client connection: bytes to frames, frames in order, answers back.

A protocol class, not streams. Requests of a connection are handled one after the other, as Kafka
does by muting its channel: that keeps each producer's batches in order. Frames that arrive
meanwhile queue up to a limit, then reading pauses; a client that does not read its answers is not
read from either. What all connections hold together is bounded by `limits.memory`.

Where no request is in work, a frame is first shown to the fast path (`broker.fast`), in the read
buffer: most small ones are answered from there.

Answers are written as bytes; a long slice of a segment file goes by `sendfile`, untouched.

On a listener with SASL the frames are small ones until the client has logged in. Under TLS the
kernel cannot send a file's bytes as they are: slices are read and written piece by piece.

Any error of one connection ends that connection, with one line in the log: also a request that is
cancelled by what it waited for, since an answer that never comes shifts all after it. A client that
just leaves is no error: frames that had arrived whole are still handled (a producer with acks=0
may be gone by then), a long poll is not waited for.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from lapse.base.clock import monotonic_ms
from lapse.base.readable import shortened
from lapse.broker.access.authentication import Entrance
from lapse.broker.fast.left_over import LeftOver
from lapse.broker.fast.requests import Answered, FastRequests
from lapse.broker.limits.connections import Admission
from lapse.broker.net.dispatch import answer
from lapse.broker.net.eager_task import begin
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.throttle import wait_out
from lapse.log.state import LogSlice
from lapse.security.authorizer import ANONYMOUS
from lapse.security.mechanism import AuthenticationFailed
from lapse.security.sasl import RECEIVE_BYTES_MAX, SaslServer
from lapse.security.ssl_principal import principal_of
from lapse.wire.codec import Part
from lapse.wire.errors import FrameSizeError
from lapse.wire.framing import FrameReader

logger = logging.getLogger(__name__)

QUEUED_FRAMES_MAX = 16
QUEUED_BYTES_MAX = 32 << 20
WRITE_BUFFER_BYTES_MAX = 128 << 10
# An answer in memory that is no longer than that is not counted.
SMALL_ANSWER_BYTES_MAX = 64 << 10
TLS_PIECE_BYTES = 256 << 10
# After so much of a file it is noted that the client still reads.
FILE_PIECE_BYTES = 8 << 20


def admitted(services: Services, peer: str, host: str) -> bool:
    """Whether an address may have one more connection, which is to `leave` when it ends."""
    admission = services.by_address.enter(host)
    if admission is Admission.TAKEN:
        return True
    if admission is Admission.REFUSED_FIRST:  # one line, however many come
        logger.warning("connection of %s closed: %s", peer, services.by_address.limit(host))
    services.counters.connections_refused += 1
    return False


class Connection(asyncio.BufferedProtocol):
    """The server's end of a connection; `connections` is where it is listed while it lives.

    Under TLS bytes may come, and the client may leave, before `connection_made` (see `server`).
    """

    def __init__(
        self,
        services: Services,
        connections: dict[Connection, None],
        entrance: Entrance,
        fast: FastRequests,
    ) -> None:
        self._services, self._connections, self._entrance = services, connections, entrance
        self._fast = fast
        self._frame_bytes_max = services.config.socket_request_max_bytes
        self._reader = FrameReader(
            self._frame_bytes_max
            if entrance.sasl is None
            else min(self._frame_bytes_max, RECEIVE_BYTES_MAX),
        )
        self._is_made = self._is_lost = self._is_sending = False
        self._heard_at = services.clock.monotonic()
        self._frames: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._handled_bytes = 0  # of the frame in work
        self._counted = 0, 0  # what `in_flight` knows: bytes of whole frames, of one in part
        self._waits_for_room = False
        self._refusal: str | None = None
        self._is_paused = False
        self._pump: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # --- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._is_lost:
            return
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        sasl = self._entrance.sasl
        self.session = Session(
            f"{peer[0]}:{peer[1]}" if peer else "unknown",
            str(local[0]),
            self._entrance,
            None if sasl is None else SaslServer(sasl),
            number=self._services.arrivals.number(),
        )
        if not admitted(self._services, self.session.peer, self.session.address):
            self._transport.abort()
            return
        self._connections[self] = None
        self._services.counters.connections += 1
        self._is_made = True
        self.session.when_ending = self._turn_away
        self._identify()
        self._look()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  (its reason is the client's)
        self._is_lost = True
        self._reader.forget()
        if self._pump is None:
            self._drop_frames()
        self._services.request_bytes.done(self)
        self._count()
        if not self._is_made:
            return
        self._connections.pop(self, None)
        self._services.by_address.leave(self.session.address)
        self._services.counters.connections -= 1
        self.session.lose()
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = self._services.clock.monotonic()
        if self._is_made and self.session.ends:
            return  # what was on its way before reading paused
        try:
            frames = self._reader.buffer_updated(nbytes, self._answer_at_once)
        except FrameSizeError as e:
            frames = e.frames
            self._refusal = str(e)
        if frames and self._is_made and self._transport.is_closing():
            return  # the one before them was the last one
        for frame in frames:
            self._frames.append(frame)
            self._queued_bytes += len(frame)
        if not self._frames and self._refusal is None and not self._reader.is_long:
            return  # all was answered
        if self._is_made:
            self._look()
        else:
            self._count()

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # --- ours -----------------------------------------------------------------------------------

    def _answer_at_once(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int
    ) -> bool:
        """Whether the fast path has answered a frame; False where it is to be queued."""
        if (
            self._pump is not None
            or not self._is_made
            or self._drained is not None
            or self.session.ends
            or self._transport.is_closing()
        ):
            return False
        try:
            answered = self._fast.answer(buffer, array, start, end, self.session)
        except CloseConnection as e:
            self._refuse(str(e))
            return True
        except Exception as e:  # noqa: BLE001  (it is logged there)
            self._end_after_our(e)
            return True
        if answered is None:
            return False
        if isinstance(answered, list) and len(answered) == 1:
            (only,) = cast("list[bytes]", answered)  # an answer never begins with records
            answered = only if len(only) <= SMALL_ANSWER_BYTES_MAX else answered
        if not isinstance(answered, bytes) or self.session.muted_ms:
            if not isinstance(answered, bytes | list):  # it waits, and keeps the request
                self._handled_bytes = end - start
                self._count()
            self._pump = begin(self._handle_all(answered))
        elif answered:
            self._transport.write(answered)
        return True

    @property
    def missing_bytes(self) -> int:
        """What the frame lacks that is on its way (`limits.memory`)."""
        return self._reader.missing_bytes

    @property
    def silent_seconds(self) -> float:
        """How long nothing was heard (`limits.memory`)."""
        return self._services.clock.monotonic() - self._heard_at

    def go_on(self) -> None:
        """There is room for more of it (`limits.memory`)."""
        self._waits_for_room = False
        self._heard_at = self._services.clock.monotonic()  # until now it could not be heard
        self._steer()

    def give_up(self, reason: str) -> None:
        """End the connection, since it takes room that others need (`limits.memory`)."""
        self._log_refusal(reason)
        self._cut_off()

    async def close(self) -> None:
        """End the connection; a request in work is abandoned, its disk work is not undone."""
        self._transport.abort()
        await asyncio.sleep(0)  # asyncio's sendfile wants to hear of it before it is cancelled
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    def end_if_silent(self, since: float) -> None:
        """End it if nothing was heard since that moment, and nothing but the client is waited for.

        It may be half open: the client is gone, and its going got lost. That it takes what is sent
        counts as being heard.
        """
        if self._heard_at < since and (self._pump is None or self._is_sending):
            self._cut_off()

    def _cut_off(self) -> None:
        """End it at once; what is being sent is let go of, which asyncio's sendfile would not."""
        self._transport.abort()
        if self._pump is not None and self._is_sending:
            asyncio.get_running_loop().call_soon(self._pump.cancel)

    def _identify(self) -> None:
        """Whom a client's certificate names, where that is what counts."""
        tls = self._transport.get_extra_info("ssl_object")
        if tls is None or self.session.sasl is not None:
            return
        certificate = tls.getpeercert(binary_form=True)
        try:
            if certificate is not None:
                self.session.certified = principal_of(certificate, self._entrance.rules)
        except AuthenticationFailed as e:
            self._services.counters.logins_refused[self._entrance.listener.name] += 1
            self.session.end(str(e))
            self._refuse(self.session.ends)
        else:
            known = self.session.certified != ANONYMOUS
            self._services.counters.logins[self._entrance.listener.name] += known

    def _look(self) -> None:
        """Take up what has come; stop reading where it is too much, or enough is known."""
        if self.session.ends:
            return
        if self._pump is None and (self._frames or self._refusal):
            self._pump = begin(self._handle_all())
        self._count()
        self._ask_for_room()
        self._steer()

    def _turn_away(self) -> None:
        """Hold nothing of a client whose session ends, and read no more, until its last answer."""
        self._drop_frames()
        self._reader.forget()
        self._services.request_bytes.done(self)
        self._count()
        self._transport.pause_reading()

    def _steer(self) -> None:
        """Read, or do not."""
        if not self._is_made or self.session.ends or self._transport.is_closing():
            return
        if self._is_full() or self._refusal is not None or self._waits_for_room:
            self._is_paused = True
            self._transport.pause_reading()  # again if need be: asyncio's sendfile resumes it
        elif self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def _is_full(self) -> bool:
        frames_max = 1 if self._services.request_bytes.is_short else QUEUED_FRAMES_MAX
        return len(self._frames) >= frames_max or self._queued_bytes >= QUEUED_BYTES_MAX

    def _ask_for_room(self) -> None:
        """Whether a large frame that has come in part may be read on."""
        room = self._services.request_bytes
        if not self._reader.missing_bytes:
            room.done(self)
        elif not room.may_read(self):
            self._waits_for_room = True

    def _count(self) -> None:
        """Report the bytes that this connection holds."""
        whole, partial = self._queued_bytes + self._handled_bytes, self._reader.large_bytes
        before, self._counted = self._counted, (whole, partial)
        if before != self._counted:
            self._services.request_bytes.change(whole - before[0], partial - before[1])

    def _drop_frames(self) -> None:
        self._frames.clear()
        self._queued_bytes = 0

    async def _handle_all(self, first: Answered = b"") -> None:
        """Handle queued frames until there is none left; one such task at a time.

        `first` is the answer to a request that was handled before them.
        """
        try:
            if first or self.session.muted_ms:
                await self._send_answered(first)
                await self._go_on_after()
            while self._frames:
                await self._handle(self._frames.popleft())
            if self._refusal is not None:
                self._refuse(self._refusal)
        except CloseConnection as e:
            self._refuse(str(e))
        except (ConnectionError, TimeoutError):
            self._transport.abort()  # the client left while we wrote
        except Exception as e:  # noqa: BLE001  (it is logged there)
            self._end_after_our(e)
        except BaseException as e:
            if not self._transport.is_closing():  # nobody hung up: what the request waited for did
                self._end_after_our(e)
            raise
        finally:
            self._pump = None
            if self._transport.is_closing():
                self._drop_frames()
            self._handled_bytes = 0
            self._count()

    async def _handle(self, frame: memoryview) -> None:
        session = self.session
        self._queued_bytes -= len(frame)
        self._handled_bytes = len(frame)
        array = np.frombuffer(frame, np.uint8)
        answered = self._fast.answer(frame, array, 0, len(frame), session)
        if answered is not None:
            await self._send_answered(answered)
        else:
            await self._answer_readably(frame)
        self._handled_bytes = 0
        await self._go_on_after()

    async def _answer_readably(self, frame: memoryview) -> None:
        parts = await answer(self._services, self.session, frame)
        if parts is not None:
            await self._send_parts(parts)

    async def _send_answered(self, answered: Answered) -> None:
        """Send what the fast path answers, once it is known."""
        known = answered if isinstance(answered, bytes | list) else await answered
        if isinstance(known, LeftOver):
            await self._answer_readably(known.frame)
        elif isinstance(known, list):
            await self._send_parts(known)
        elif known and not self.session.lost:
            self._transport.write(known)
            self._heard_at = self._services.clock.monotonic()

    async def _send_parts(self, parts: list[Part]) -> None:
        """Send an answer to a client that is still there."""
        self._handled_bytes = 0
        if not self.session.lost and not self._send_short(parts):
            self._count()
            await self._send_counted(parts)

    async def _go_on_after(self) -> None:
        """Whether and when the next request is handled, after one was."""
        session = self.session
        if self._drained is not None and not session.lost:  # that was more than the socket took
            self._is_sending = True
            try:
                await self._drain()
            finally:
                self._is_sending = False
        if session.muted_ms and not session.lost:
            await wait_out(self._services, session)
        if session.ends:
            raise CloseConnection(session.ends)
        if session.sasl is not None and session.sasl.principal is not None:
            self._reader.frame_bytes_max = self._frame_bytes_max
        if self._is_paused:
            self._steer()

    def _send_short(self, parts: list[Part]) -> bool:
        """Whether it was a short answer of one piece, and is sent: most are."""
        first = cast("bytes", parts[0])  # an answer never begins with records
        if len(parts) > 1 or len(first) > SMALL_ANSWER_BYTES_MAX or self._drained is not None:
            return False
        self._transport.write(first)
        self._heard_at = self._services.clock.monotonic()
        return True

    async def _send_counted(self, parts: list[Part]) -> None:
        """Send an answer; a long one is counted as long as it is held."""
        size = sum(self._bytes_in_memory(part) for part in parts)
        answers = self._services.answer_bytes
        if size > SMALL_ANSWER_BYTES_MAX:
            answers.begin(self, size)
        self._is_sending = True
        try:
            await self._send(parts)
        finally:
            self._is_sending = False
            answers.end(self)

    def _bytes_in_memory(self, part: Part) -> int:
        """Until it is sent; of a slice what is read of it at a time, under TLS."""
        if not isinstance(part, LogSlice):
            return len(cast("bytes | memoryview", part))
        if self._entrance.tls is None:
            return 0
        return min(part.size, WRITE_BUFFER_BYTES_MAX + TLS_PIECE_BYTES)

    async def _send(self, parts: list[Part]) -> None:
        ready: list[bytes | memoryview] = []
        for part in parts:
            if isinstance(part, LogSlice):
                self._transport.writelines(ready)
                ready = []
                await self._send_file(part)
            else:
                ready.append(cast("bytes | memoryview", part))
        self._transport.writelines(ready)
        await self._drain()

    async def _drain(self) -> None:
        """Wait until the client took most of what was written."""
        if self._drained is not None:
            await self._drained
        self._heard_at = self._services.clock.monotonic()

    async def _send_file(self, records: LogSlice) -> None:
        """Hand a slice of a file to the kernel; the frame promised its size, so all or nothing."""
        if self._transport.is_closing():
            raise ConnectionResetError
        if self._entrance.tls is not None:
            await self._send_pieces(records)
            return
        begun = self._send_at_once(records)
        if begun == records.size:
            return
        loop = asyncio.get_running_loop()
        file = cast("IO[bytes]", records)  # only its fileno is used
        for start in range(begun, records.size, FILE_PIECE_BYTES):
            size = min(FILE_PIECE_BYTES, records.size - start)
            try:
                sent = await loop.sendfile(
                    self._transport, file, records.position + start, size, fallback=False
                )
            except (ConnectionError, TimeoutError):
                raise
            except asyncio.SendfileNotAvailableError as e:
                # asyncio says this of any error before its first byte; a second call names it.
                self._send_at_once(LogSlice(records.files, records.position + start, size))
                raise CloseConnection("sending a slice of a segment failed once") from e
            except OSError as e:
                raise CloseConnection(f"sending a slice of a segment: {e.strerror or e}") from e
            if sent != size:
                raise CloseConnection(
                    f"a slice of {records.size} bytes of a segment has only {start + sent} left"
                )
            self._heard_at = self._services.clock.monotonic()

    def _send_at_once(self, records: LogSlice) -> int:
        """As much as the socket takes now: for most answers all, without asyncio's bookkeeping."""
        if self._transport.get_write_buffer_size():
            return 0  # what was written before goes first
        socket = self._transport.get_extra_info("socket")
        try:
            return os.sendfile(socket.fileno(), records.fileno(), records.position, records.size)
        except BlockingIOError:
            return 0
        except ConnectionError:
            raise
        except OSError as e:
            raise CloseConnection(f"sending a slice of a segment: {e.strerror or e}") from e

    async def _send_pieces(self, records: LogSlice) -> None:
        """The same through the process, for TLS to encrypt; waits for a slow reader."""
        for start in range(0, records.size, TLS_PIECE_BYTES):
            size = min(TLS_PIECE_BYTES, records.size - start)
            piece = LogSlice(records.files, records.position + start, size)
            try:
                data = await self._services.disk.run(piece.read)
            except OSError as e:
                raise CloseConnection(f"reading a slice of a segment: {e.strerror or e}") from e
            if len(data) != size:
                raise CloseConnection(
                    f"a slice of {records.size} bytes of a segment has only "
                    f"{start + len(data)} left"
                )
            self._transport.write(data)
            await self._drain()
            if self._transport.is_closing():
                raise ConnectionResetError

    def _end_after_our(self, error: BaseException) -> None:
        peer = self.session.peer
        logger.error("connection of %s ended by an error of ours", peer, exc_info=error)
        self._services.counters.connections_refused += 1
        self._transport.abort()

    def _refuse(self, reason: str) -> None:
        self._log_refusal(reason)
        self._drop_frames()
        self._transport.close()

    def _log_refusal(self, reason: str) -> None:
        services, reason = self._services, shortened(reason)
        services.counters.connections_refused += 1
        now_ms = monotonic_ms(services.clock)
        ending = services.log_lines.ending(self.session.address, reason, now_ms)
        if ending is not None:
            logger.warning("connection of %s closed: %s%s", self.session.peer, reason, ending)
