"""AlterRounds (key 10001): pause, resume, call off or ask for rounds of this broker's logs.

Needs ALTER cluster, as the same on the HTTP port.

Behaviour: as `lapse rounds pause`, `resume`, `cancel` and `clean` in the broker's directory, by
files there that the lifecycle service reads. A pause begins, and ends, by the broker's clock. A
pause answers with all pauses that hold, `clean` with what is asked for, the others with what they
have ended. Logs that are not here count, too, since a replica may come, but not for `clean`.
INVALID_REQUEST for another verb, a log's name that is none, no log at all (null means all, but for
`clean`), or a negative duration but -1; KAFKA_STORAGE_ERROR where it cannot be written.

v0 ours; not in ApiVersions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from lapse.base.errors import ErrorCode, LapseError
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.base.times import after_ms
from lapse.broker.request.asked_logs import asked_logs, away
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.lifecycle.status import pauses, wishes
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause
from lapse.security.acls import Operation
from lapse.wire.schema.alter_rounds import (
    ALTER_ROUNDS,
    CANCEL,
    CLEAN,
    PAUSE,
    RESUME,
    AlterRoundsRequest,
    AlterRoundsResponse,
)

Done = Sequence[object]


async def handle(
    services: Services, _session: Session, _version: int, request: AlterRoundsRequest
) -> AlterRoundsResponse:
    """Do it, in a thread, and say what came of it."""
    do = _VERBS.get(request.what)
    is_no_log = request.logs == () or None in map(TopicPartition.parse, request.logs or ())
    is_no_log |= request.what == CLEAN and request.logs is None
    if do is None or request.duration_ms < -1 or is_no_log:
        verbs = ", ".join(_VERBS)
        words = (
            f"what: allowed is {verbs}; logs: like t-0, or null but for clean; duration_ms: -1 or "
            "more"
        )
        return AlterRoundsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=words)
    if request.what == CLEAN:
        here = {str(log.partition) for log in services.partitions.all()}
        request = replace(request, logs=tuple(one for one in request.logs or () if one in here))
    place = services.partitions.env.fs, services.partitions.data_dir
    try:
        done = await services.disk.run(do, *place, request, services.clock.now_ms())
    except (LapseError, OSError) as e:
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return AlterRoundsResponse(error_code=code, error_message=str(e))
    return AlterRoundsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        broker_id=services.config.node_id,
        lines=tuple(msgspec.json.encode(one).decode() for one in done),
        away=away(services, asked_logs(services, request.logs)),
    )


def _pause(fs: Fs, path: Path, request: AlterRoundsRequest, now_ms: int) -> Done:
    logs = request.logs or ()
    until_ms = None if request.duration_ms < 0 else after_ms(now_ms, request.duration_ms)
    pauses.pause(fs, path, logs, Pause(EVERY_LOG, now_ms, until_ms, request.reason))
    if request.now:
        pauses.call_off(fs, path, logs, now_ms)
    return list(pauses.read_pauses(path, now_ms))


def _resume(fs: Fs, path: Path, request: AlterRoundsRequest, now_ms: int) -> Done:
    return pauses.resume(fs, path, request.logs or (), now_ms)


def _cancel(fs: Fs, path: Path, request: AlterRoundsRequest, now_ms: int) -> Done:
    return pauses.call_off(fs, path, request.logs or (), now_ms)


def _clean(fs: Fs, path: Path, request: AlterRoundsRequest, now_ms: int) -> Done:
    return wishes.wish(fs, path, request.logs, now_ms) if request.logs else ()


_VERBS: dict[str, Callable[[Fs, Path, AlterRoundsRequest, int], Done]] = {
    PAUSE: _pause,
    RESUME: _resume,
    CANCEL: _cancel,
    CLEAN: _clean,
}

API = Endpoint(
    ALTER_ROUNDS,
    AlterRoundsRequest,
    AlterRoundsResponse,
    handle,
    of_cluster(Operation.ALTER, AlterRoundsResponse(**CLUSTER_REFUSAL)),
)
