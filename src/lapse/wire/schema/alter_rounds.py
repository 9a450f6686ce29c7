"""AlterRounds (key 10001): steer rounds of a broker's logs. Ours, not Kafka's.

v0 flexible. No ApiVersions answer has it, as DescribeOutlook.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    INT64,
    OWN_KEYS_FROM,
    STRING,
    api,
    array,
    field,
    request,
    response,
)

ALTER_ROUNDS = api(OWN_KEYS_FROM + 1, "AlterRounds", versions="0", flexible="0+")

PAUSE, RESUME, CANCEL, CLEAN = "pause", "resume", "cancel", "clean"


@request(ALTER_ROUNDS)
class AlterRoundsRequest:
    """What is to be done: pause, resume, cancel, or clean soon.

    `logs` (like "t-0") choose some; null: all, but not for clean. Of a pause: `duration_ms`, -1
    for one that only `resume` ends, and `reason`; `now`: what is under way is called off, too.
    """

    what: str = field(STRING)
    logs: tuple[str, ...] | None = field(array(STRING), nullable="0+", default=None)
    duration_ms: int = field(INT64, default=-1)
    reason: str = field(STRING, default="")
    now: bool = field(BOOL, default=False)


@response(ALTER_ROUNDS)
class AlterRoundsResponse:
    """Lines of JSON: the pauses that hold, or that ended, or the rounds that are called off.

    `away`: brokers that have some of the logs, and are not there.
    """

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    broker_id: int = field(INT32, default=-1)
    lines: tuple[str, ...] = field(array(STRING), default=())
    away: tuple[int, ...] = field(array(INT32), default=())
