"""All conditions that can be out of order, in one table: whether each degrades a broker, its text.

`/health`, the metric `lapse_degraded`, `lapse explain` and docs/health.md all use it.
`pipeline_conditions` finds the conditions of the rounds; `broker.conditions` finds what keeps logs
from taking writes. Pure.

A broker knows its lifecycle service by the control socket and by the service's files, so it notices
at once that a service died, no matter what the files say. A running service reports its engine in
those files, also while it has no connection. Without a broker, only the files are available.

The engine is what runs rounds: Spark, or this process. A missing engine is no fault as long as no
round is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lapse.base.clock import time_text
from lapse.base.times import duration
from lapse.lifecycle.decide import lateness
from lapse.lifecycle.status.reports import (
    ENGINE_FAILED,
    ENGINE_STARTING,
    NO_ENGINE,
    RESTARTING,
    SILENT_MS,
    STOPPED,
    WAITING,
    EngineReport,
    ServiceProgress,
    is_running,
)

FAILURES_MIN = 3  # failed rounds of a log in a row that make a condition
ANSWER_MS_MAX = 300_000  # a service may wait this long for one answer, and writes nothing meanwhile

_NO_ROUNDS = "rounds are not running"
RESTART_MS_MAX = 10_000  # until a program that runs anew is connected again

LATE_WORDS: Mapping[str, str] = {
    lateness.SUPERSEDED: "a superseded value",
    lateness.TOMBSTONE: "a tombstone",
    lateness.MARKER: "a transaction's marker",
    lateness.DELETED: "deleted records",
    lateness.RETENTION: "an expired segment",
}


class Kind(NamedTuple):
    """A class of conditions.

    Attributes:
        degrades: whether a broker that has one is degraded.
        what: what it is, in short.
    """

    degrades: bool
    what: str


DIRECTORY_OFFLINE, NOT_OPEN, LOG_OFFLINE = "directory_offline", "log_not_open", "log_offline"
DISK_FULL, STORAGE, TOO_FEW_REPLICAS = "disk_full", "storage_error", "not_enough_replicas"
SERVICE_GONE, ROUNDS_ABSENT = "service_gone", "engine_absent"
STARTING, FAILED = "engine_starting", "engine_failed"
ROUNDS_FAILING, DEADLINE_MISSED = "rounds_failing", "deadline_missed"
CLOCK_HELD, BROKER_GONE = "clock_held", "broker_gone"
NO_METADATA, LEVEL_HELD_BACK = "metadata_unreachable", "level_held_back"

KINDS: Mapping[str, Kind] = {
    DIRECTORY_OFFLINE: Kind(True, "a directory of log.dirs failed"),
    NOT_OPEN: Kind(True, "a log could not be opened"),
    LOG_OFFLINE: Kind(True, "a log takes no writes any more"),
    DISK_FULL: Kind(True, "a log's disk has no room"),
    STORAGE: Kind(True, "a log's disk refuses writes"),
    TOO_FEW_REPLICAS: Kind(False, "a setting requires more replicas than there are"),
    SERVICE_GONE: Kind(True, "the lifecycle service died, or does not answer"),
    ROUNDS_ABSENT: Kind(True, "rounds are due and there is no engine to make them"),
    STARTING: Kind(False, "the engine is starting"),
    FAILED: Kind(True, "the engine failed"),
    ROUNDS_FAILING: Kind(True, "rounds of a log fail again and again"),
    DEADLINE_MISSED: Kind(True, "what must be gone is not"),
    CLOCK_HELD: Kind(True, "the wall clock is not believed"),
    BROKER_GONE: Kind(True, "no broker serves the directory"),
    NO_METADATA: Kind(True, "ZooKeeper does not answer, or cannot be followed"),
    LEVEL_HELD_BACK: Kind(False, "a broker's file holds the cluster's feature level back"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is out of order.

    Attributes:
        reason: a key of `KINDS`, for metrics and scripts.
        logs: how many logs it is about; 0 where it is not about logs.
        since_ms: when it was first seen; None: not known, or it is a setting.
        words: the details, as text for people.
    """

    reason: str
    logs: int
    since_ms: int | None
    words: str

    @property
    def is_fault(self) -> bool:
        """Whether it degrades a broker: False where a setting chose it."""
        return KINDS[self.reason].degrades

    def __str__(self) -> str:
        since = "" if self.since_ms is None else f" (since {time_text(self.since_ms)})"
        return f"{self.words}{since}"


@dataclass(frozen=True, slots=True)
class Connection:
    """What a broker knows of its service by the service's messages.

    Attributes:
        pid: of the connected service, None if none is connected.
        left_ms: when the last service disconnected, None if none ever connected.
        last_pid: of that last service.
        waited_ms: since the service last requested facts, or since the broker began to wait for it.
    """

    pid: int | None
    left_ms: int | None = None
    last_pid: int | None = None
    waited_ms: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the caller knows of the pipeline.

    Attributes:
        wanted: whether rounds are enabled (log.cleaner.enable).
        service: what the service's files said last.
        connection: None where there is no broker.
        due: number of logs with a round due, or to be looked through before one can be.
        failing: by log, how many rounds failed in a row, and why the last one did if known.
        late_ms: by log and kind, by how much a removal is late.
        decided_ms: the time that is late by, which does not go back with the wall clock (ADR-11);
            None where it is `now_ms`.
        clock: what is wrong with it, "" where it is believed.
    """

    now_ms: int
    wanted: bool
    service: ServiceProgress | None
    connection: Connection | None
    due: int = 0
    failing: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    late_ms: Mapping[tuple[str, str], int] = field(default_factory=dict)
    clock: str = ""
    decided_ms: int | None = None


def pipeline_conditions(seen: Seen) -> list[Condition]:
    """All present conditions, the widest first."""
    found: list[Condition] = []
    if seen.wanted:
        found += _of_service(seen)
    if seen.clock:
        found.append(Condition(CLOCK_HELD, 0, None, seen.clock))
    found += _failing(seen)
    found += _late(seen)
    return found


def engine_report(seen: Seen) -> EngineReport:
    """The engine that the service reports: none where the service is gone or has stopped."""
    service = seen.service
    if service is None or service.state == STOPPED or _gone(seen) is not None:
        return NO_ENGINE
    return service.engine


def _of_service(seen: Seen) -> Iterator[Condition]:
    gone = _gone(seen)
    if gone is not None:
        yield gone
        return
    service, engine = seen.service, engine_report(seen)
    again = f" {_times(engine.failures)}" if engine.failures else ""
    if engine.state == ENGINE_FAILED or (engine.state == ENGINE_STARTING and engine.failures):
        then = f"; next try {time_text(engine.next_try_ms)}" if engine.next_try_ms else ""
        then = "; starting it again" if engine.state == ENGINE_STARTING else then
        words = f"{_NO_ROUNDS}: the engine failed{again}: {engine.error}{then}"
        yield Condition(FAILED, seen.due, engine.since_ms, words)
    elif engine.state == ENGINE_STARTING:
        yield Condition(STARTING, 0, engine.since_ms, "the engine is starting")
    elif engine == NO_ENGINE and seen.due and _has_waited(seen):
        why = (
            "no lifecycle service is there"
            if service is None
            else f"its service has {service.state}"
        )
        words = f"{_NO_ROUNDS}: {_logs(seen.due)} due, and {why}"
        yield Condition(ROUNDS_ABSENT, seen.due, None, words)
    if service is not None and service.state == WAITING and seen.connection is None:
        yield Condition(BROKER_GONE, 0, None, f"the lifecycle service waits: {service.detail}")


def _gone(seen: Seen) -> Condition | None:
    """Why the service is missing though it should run; None if it runs or was stopped."""
    service, connection = seen.service, seen.connection
    if service is None or (
        service.state == STOPPED and (connection is None or connection.pid is None)
    ):
        return None
    if connection is None:
        return None if is_running(service, seen.now_ms) else _silent(service)
    if connection.pid is not None:
        return _mute(seen, service, connection)
    return _away(seen, service, connection)


def _mute(seen: Seen, service: ServiceProgress, connection: Connection) -> Condition | None:
    """The condition of a service that is connected but makes no progress."""
    if connection.waited_ms <= SILENT_MS + ANSWER_MS_MAX:
        return None
    if is_running(service, seen.now_ms, grace_ms=ANSWER_MS_MAX):
        return None
    words = f"the lifecycle service, process {connection.pid}, is connected and does not answer"
    return Condition(SERVICE_GONE, seen.due, service.updated_ms, f"{_NO_ROUNDS}: {words}")


def _away(seen: Seen, service: ServiceProgress, connection: Connection) -> Condition | None:
    """The condition of a service that is no longer connected to this or an earlier broker."""
    if service.state == RESTARTING and abs(seen.now_ms - service.updated_ms) <= RESTART_MS_MAX:
        return None  # the same process runs its program anew
    left_ms, alive = connection.left_ms, is_running(service, seen.now_ms)
    if left_ms is not None and (service.updated_ms <= left_ms or not alive):
        words = f"the lifecycle service, process {connection.last_pid}, is gone"
        return Condition(SERVICE_GONE, seen.due, left_ms, f"{_NO_ROUNDS}: {words}")
    if not _has_waited(seen):
        return None
    if service.state == WAITING and alive:
        words = f"the lifecycle service does not get in: {service.detail}"
        return Condition(SERVICE_GONE, seen.due, None, f"{_NO_ROUNDS}: {words}")
    return None if alive else _silent(service)


def _silent(service: ServiceProgress) -> Condition:
    words = f"the lifecycle service, process {service.pid}, says nothing"
    return Condition(SERVICE_GONE, 0, service.updated_ms, f"{_NO_ROUNDS}: {words}")


def _has_waited(seen: Seen) -> bool:
    """Whether a starting service would be connected: it comes some seconds after a broker."""
    return seen.connection is None or seen.connection.waited_ms > SILENT_MS


def _failing(seen: Seen) -> Iterator[Condition]:
    often = {log: failed for log, failed in seen.failing.items() if failed[0] >= FAILURES_MIN}
    if often:
        log, (failures, why) = min(often.items(), key=lambda item: (-item[1][0], item[0]))
        reason = f": {why}" if why else ""
        words = f"rounds of {_count(len(often))} fail: {log} {_times(failures)}{reason}"
        yield Condition(ROUNDS_FAILING, len(often), None, words)


def _late(seen: Seen) -> Iterator[Condition]:
    late = {key: ms for key, ms in seen.late_ms.items() if ms > 0}
    if late:
        (log, kind), ms = max(late.items(), key=lambda item: (item[1], item[0]))
        count = len({name for name, _ in late})
        words = (
            f"{_count(count)} missed a deadline: {LATE_WORDS[kind]} of {log} is late by "
            f"{duration(ms)}"
        )
        decided_ms = seen.now_ms if seen.decided_ms is None else seen.decided_ms
        yield Condition(DEADLINE_MISSED, count, decided_ms - ms, words)


def _count(logs: int) -> str:
    return "1 log" if logs == 1 else f"{logs} logs"


def _logs(logs: int) -> str:
    return "a round of 1 log is" if logs == 1 else f"rounds of {logs} logs are"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
