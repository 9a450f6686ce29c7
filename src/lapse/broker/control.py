"""The owner's side of rounds: facts and commits for the lifecycle service, over a Unix socket.

The socket is `control.sock` in the first data directory, for this user alone (0600): a process that
can write to it can replace segments. Messages are `lifecycle.owner.messages`. One service at a time
may be connected; when one connects, attempts that an earlier service left are swept, since they
will never be committed. A client that sends `AskConditions` instead of `Hello` gets the list of
what is out of order, and does not count as a service (`lapse explain`).

One dedicated thread does everything that reads, syncs or renames: the event loop goes on serving
clients, and no two commits, and no commit and sweep, run at the same time. Beside a busy loop that
thread takes breaks (`base.scheduling.Breaks`): its work is never urgent to the millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary
from zlib import crc32

import msgspec

from lapse.base.clock import cpu_seconds_of
from lapse.base.errors import LapseError, StorageError
from lapse.base.scheduling import Breaks
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import (
    Adopt,
    Adopted,
    Answer,
    AskConditions,
    Commit,
    Committed,
    Conditions,
    Hello,
    ListLogs,
    Refused,
    Request,
    Welcome,
)
from lapse.lifecycle.round import commit as rounds
from lapse.lifecycle.round.bad import current_facts
from lapse.lifecycle.round.commit import CommitResult, DirectoryEnv
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.stamps import StampCache
from lapse.lifecycle.round.summarise import SummaryReceipt, take_over
from lapse.lifecycle.status.conditions import Condition
from lapse.log.env import LogEnv
from lapse.log.partition_log import LogMark, PartitionLog
from lapse.log.swap import sweep_attempts

logger = logging.getLogger(__name__)

PRODUCERS_MS_MAX = 120_000
SWEEP_AGAIN_SECONDS = 60.0  # Spark kills the tasks of a cancelled job within some seconds
_OWNER_ONLY = 0o600
_NO_SUCH_LOG = "this broker has no such log"


@dataclass(frozen=True, slots=True)
class ServiceSeen:
    """What the broker knows of its lifecycle service.

    Attributes:
        pid: None while no service is connected: then rounds are not running.
        idle_s: since the service last listed the logs, or since this server was made.
        left_ms: when the last service left, by the wall clock; None if there was none.
        last_pid: of the service that left last.
    """

    pid: int | None
    idle_s: float
    left_ms: int | None = None
    last_pid: int | None = None


class ControlServer:
    """Listens at `control.sock` in `data_dir`, which this process has locked.

    Attributes:
        conditions: returns what is out of order, for `AskConditions`; called in a thread.
    """

    def __init__(
        self, partitions: Partitions, env: LogEnv, data_dir: Path, thread: DiskThreads
    ) -> None:
        """`thread` is its own, and one: what it does takes long."""
        self.path = data_dir / messages.SOCKET
        self._env = env
        breaks = Breaks(env.clock, cpu_seconds_of(threading.get_ident()))
        self._owner = OwnedLogs(partitions, env, breaks.take)
        self._thread = thread
        self._service_pid: int | None = None
        self._left: tuple[int, int] | None = None  # when the last service left, and its pid
        self.conditions: Callable[[], Sequence[Condition]] = tuple
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._listed_s = env.clock.monotonic()

    def seen(self) -> ServiceSeen:
        """Whether a service is connected, and when it last listed the logs; from any thread."""
        left_ms, last_pid = self._left or (None, None)
        idle_s = self._env.clock.monotonic() - self._listed_s
        return ServiceSeen(self._service_pid, idle_s, left_ms, last_pid)

    async def start(self) -> None:
        """Bind and accept; raises StorageError where the socket cannot be bound."""
        sock = await self._thread.run(bind, self.path, self._env)
        self._server = await asyncio.start_unix_server(self._connected, sock=sock)

    async def stop(self) -> None:
        """Let the commit under way finish, and answer no further requests."""
        if self._server is not None:
            self._server.close()
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            with contextlib.suppress(StorageError):  # on a failed disk the socket stays
                await self._thread.run(self._env.fs.unlink, self.path)
        await self._thread.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (LapseError, OSError, EOFError) as e:
            logger.warning("control connection ended: %s", e)
        except asyncio.CancelledError:
            pass  # by `stop`; Python 3.11 would log it as an error with a traceback
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self._read(reader)
        if request is None:
            return
        if isinstance(request, AskConditions):  # from a client that only reads
            found = await asyncio.to_thread(self.conditions)
            writer.write(messages.encode(Conditions(tuple(found))))
            await writer.drain()
            return
        refusal = self._refusal(request)
        if refusal is not None:
            logger.warning("control connection refused: %s", refusal)
            writer.write(messages.encode(Refused(refusal)))
            await writer.drain()
            return
        assert isinstance(request, Hello)
        self._service_pid = request.pid
        try:
            await self._thread.run(self._owner.sweep)
            logger.info("lifecycle service %d is connected", request.pid)
            writer.write(messages.encode(Welcome(messages.VERSION, os.getpid())))
            await self._serve(reader, writer)
        finally:
            self._service_pid = None
            self._left = self._env.clock.now_ms(), request.pid
            logger.info("lifecycle service %d is gone", request.pid)

    def _refusal(self, request: Request) -> str | None:
        if not isinstance(request, Hello):
            return f"{type(request).__name__} before Hello"
        if request.version != messages.VERSION:
            return f"version {request.version} of the service, {messages.VERSION} of the broker"
        if self._service_pid is not None:
            return f"process {self._service_pid} is this broker's lifecycle service"
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await self._read(reader)
            if request is None:
                return
            writer.write(await self._thread.run(self._answer, request))
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        """The next request; None if the other side has closed the connection."""
        where = "control socket"
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readexactly(messages.LENGTH.size)
            body = await reader.readexactly(messages.body_size(head, where))
            return await self._thread.run(messages.decode_request, body, where)
        return None

    def _answer(self, request: Request) -> bytes:
        answer: Answer
        match request:
            case ListLogs():
                self._listed_s = self._env.clock.monotonic()
                return messages.encode_logs(self._owner.encoded_logs())
            case Commit():
                answer = Committed(tuple(self._owner.commit(request.receipts)))
            case Adopt():
                answer = Adopted(tuple(self._owner.adopt_summaries(request.receipts)))
            case Hello() | AskConditions():
                answer = Refused(f"{type(request).__name__} after Hello")
        return messages.encode(answer)


@dataclass(slots=True)
class _Reported:
    """What the broker reports of a log to the service; valid while the log's mark is this one.

    Stamps are read from the ledger, which grows only in a commit, and a commit moves the mark.
    Producers expire without moving the mark, so a report is valid for `PRODUCERS_MS_MAX` at most;
    each log's report ends at a different moment, so that not all logs are read again at once.
    """

    mark: LogMark
    from_ms: int
    until_ms: int
    info: LogInfo
    _encoded: msgspec.Raw | None = None

    def encoded(self) -> msgspec.Raw:
        if self._encoded is None:
            self._encoded = msgspec.Raw(msgspec.json.encode(self.info))
        return self._encoded


class OwnedLogs:
    """`lifecycle.owner.protocol.Owner` over a broker's open logs; for one thread at a time."""

    def __init__(
        self, partitions: Partitions, env: LogEnv, take_break: Callable[[], None] = lambda: None
    ) -> None:
        self._partitions, self._env, self._take_break = partitions, env, take_break
        self._stamps = StampCache()
        self._reported: WeakKeyDictionary[PartitionLog, _Reported] = WeakKeyDictionary()
        self._unread: set[str] = set()  # logs already warned about, so that each is logged once
        self._ended: deque[tuple[float, PartitionLog, str]] = deque()  # when to sweep, log, round

    def logs(self) -> list[LogInfo]:
        return [report.info for report in self._reports()]

    def encoded_logs(self) -> list[msgspec.Raw]:
        """The same for `encode_logs`; one by one, so that many logs do not block other threads."""
        return [report.encoded() for report in self._reports()]

    def _reports(self) -> Iterator[_Reported]:
        self._sweep_ended()
        now_ms = self._env.clock.now_ms()
        online = [log for log in self._partitions.all() if log.offline_reason is None]
        for log in sorted(online, key=lambda log: log.partition):
            self._take_break()
            report = self._report(log, now_ms)
            if report is not None:
                yield report

    def _report(self, log: PartitionLog, now_ms: int) -> _Reported | None:
        """None for a log whose ledger or segments cannot be read: only that log gets no rounds.

        Without its stamps the log would lose tombstones early.
        """
        name = str(log.partition)
        try:
            report = self._reported.get(log)
            if report is None or not self._is_still_true(report, log, now_ms):
                report = self._reported[log] = self._look(log, now_ms)
        except (LapseError, OSError) as e:
            if name not in self._unread:
                logger.warning("no rounds of %s until its files can be read: %s", name, e)
            self._unread.add(name)
            return None
        self._unread.discard(name)
        return report

    def _is_still_true(self, report: _Reported, log: PartitionLog, now_ms: int) -> bool:
        is_bad = report.info.facts.bad is not None  # until the segment's file is another one
        return (
            not is_bad and report.from_ms <= now_ms < report.until_ms and report.mark == log.mark()
        )

    def _look(self, log: PartitionLog, now_ms: int) -> _Reported:
        mark = log.mark()  # before the facts: a change between the two shows in the next mark
        facts = current_facts(log, self._env.fs)
        stamps = self._stamps.of(log.dir, facts.horizon_earliest_ms, now_ms)
        half_ms = PRODUCERS_MS_MAX // 2
        until_ms = now_ms + half_ms + crc32(str(log.partition).encode()) % half_ms
        return _Reported(mark, now_ms, until_ms, LogInfo(facts, log.config, stamps))

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        """Commit the logs of each directory together: they share syncs and a checkpoint."""
        logs = {str(log.partition): log for log in self._partitions.all()}
        results: dict[int, CommitResult] = {}
        for directory in self._partitions.directories:
            hosted = [
                (n, logs[r.name], r)
                for n, r in enumerate(receipts)
                if r.name in logs and logs[r.name].partition in directory.logs
            ]
            env = DirectoryEnv(
                self._env.fs, self._env.clock, directory.set_cleaner_offsets, self._take_break
            )
            done = rounds.commit_all([(log, receipt) for _, log, receipt in hosted], env)
            for (n, log, receipt), result in zip(hosted, done, strict=True):
                results[n] = result
                if result.error is not None:
                    which = {"event": "round_refused", "partition": str(log.partition),
                             "round_id": receipt.round_id}  # fmt: skip
                    logger.warning("round %s: %s", receipt.round_id, result.error, extra=which)
                    self._sweep_one(log, receipt.round_id)
                self._sweep_again(log, receipt.round_id)
        return [results.get(n) or self._no_such_log(r) for n, r in enumerate(receipts)]

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        """Each receipt separately; a segment whose receipt is refused is looked through again."""
        logs = {str(log.partition): log for log in self._partitions.all()}
        return [
            take_over(logs[r.name], r, self._env) if r.name in logs else _NO_SUCH_LOG
            for r in receipts
        ]

    def _no_such_log(self, receipt: Receipt) -> CommitResult:
        now_ms = self._env.clock.now_ms()
        return CommitResult(receipt.round_id, receipt.name, 0, now_ms, 0.0, _NO_SUCH_LOG)

    def _sweep_one(self, log: PartitionLog, round_id: str) -> None:
        """Sweep at once to free the space; a task that is not cancelled yet may write more."""
        if not rounds.intent_path(log.dir).exists():
            with contextlib.suppress(StorageError):  # a task may still be writing there
                rounds.sweep(log.dir, round_id, self._env.fs)

    def _sweep_again(self, log: PartitionLog, round_id: str) -> None:
        again_s = self._env.clock.monotonic() + SWEEP_AGAIN_SECONDS
        self._ended.append((again_s, log, round_id))

    def _sweep_ended(self) -> None:
        """Remove what tasks wrote after the end of their round: Spark may run a task twice."""
        while self._ended and self._ended[0][0] <= self._env.clock.monotonic():
            _, log, round_id = self._ended.popleft()
            if attempt_dir(log.dir, round_id, "").exists():
                self._sweep_one(log, round_id)
                self._sweep_again(log, round_id)  # the task that wrote it may still be running

    def sweep(self) -> None:
        """Remove the attempts of services that are gone."""
        for log in self._partitions.all():
            with contextlib.suppress(StorageError, FileNotFoundError):
                sweep_attempts(self._env.fs, log.dir)


def bind(path: Path, env: LogEnv) -> socket.socket:
    """A bound socket that only this user may connect to; a dead broker's socket is replaced.

    The socket does not listen yet when its mode is set, so no other user can have connected before.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
            raise StorageError(f"{path} is in the way: it is not a socket")
        env.fs.unlink(path)
        sock.bind(messages.short_path(path, directory))
        os.chmod(path, _OWNER_ONLY)
    except OSError as e:
        sock.close()
        raise StorageError(f"cannot listen at {path}: {e.strerror or e}") from e
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock
