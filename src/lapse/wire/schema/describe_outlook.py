"""DescribeOutlook (key 10000): what a broker says of its own logs. Ours, and not Kafka's.

v0 flexible. No ApiVersions answer has it, since clients may not know what to make of such a key; a
broker that offers the feature `lapse.protocol.version` answers it.
"""

from __future__ import annotations

from lapse.wire.declaration import (
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

DESCRIBE_OUTLOOK = api(OWN_KEYS_FROM, "DescribeOutlook", versions="0", flexible="0+")

EXPLAIN, PLAN, ROUNDS = "explain", "plan", "rounds"
OVERVIEW, REPORTS = "overview", "reports"
PLAN_ROWS, SEGMENT_ROWS, LEDGER_ROWS = "plan-rows", "segment-rows", "ledger-rows"
FORESEEN_ROWS, LAST_GROUPS = "foreseen-rows", "last-groups"
ERASURES, PROOF = "erasures", "proof"


@request(DESCRIBE_OUTLOOK)
class DescribeOutlookRequest:
    """What is asked of the logs: explain, plan, rows of a view; or of the broker.

    Of the logs also foreseen-rows: rows of the plan if somebody asked for a round now.
    Of the broker: rounds, what the last ones did (reports), an overview of all logs; orders of
    erasure, and one of their proofs, which `file` names as `ORDER/FILE`, and `topic`.
    `topic` and `logs` (like "t-0") choose some; null: all. `offset`: of one record of the one log;
    -1: none. `after`: go on behind this log. `now_ms`: judge as of this moment, by the broker's
    clock if it is -1; of plan-rows and foreseen-rows.
    """

    what: str = field(STRING)
    topic: str | None = field(STRING, nullable="0+", default=None)
    logs: tuple[str, ...] | None = field(array(STRING), nullable="0+", default=None)
    offset: int = field(INT64, default=-1)
    after: str | None = field(STRING, nullable="0+", default=None)
    now_ms: int = field(INT64, default=-1)
    file: str | None = field(STRING, nullable="0+", tag=0, default=None)


@response(DESCRIBE_OUTLOOK)
class DescribeOutlookResponse:
    """Lines of JSON, in the order of the logs; `last`: there are more, behind this log.

    `away`: brokers that have some of what was asked for, and are not there; with the first lines.
    """

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    broker_id: int = field(INT32, default=-1)
    lines: tuple[str, ...] = field(array(STRING), default=())
    last: str | None = field(STRING, nullable="0+", default=None)
    away: tuple[int, ...] = field(array(INT32), default=())
