"""DescribeOutlook (key 10000): what holds this broker's logs back, what its rounds would do.

Needs DESCRIBE cluster; for a proof READ of its topic, too, since it has hashes of keys.

Behaviour: `explain` and `plan` answer a line for each log that this broker has, as the commands of
that name print it with `--json`; `rounds` one line, of the lifecycle service; `reports` one for
each of its last rounds; `overview` one of all logs; `plan-rows`, `segment-rows` and `ledger-rows` a
line for each row of Spark's views; `foreseen-rows` as `plan-rows`, if somebody asked for a round of
each log now; `last-groups` one for each of the last segments that rounds
wrote; `erasures` one for each order in `lapse.erase.orders.dir`, and `proof` the text of the one
that `topic` and `file` name, if it is there. All else comes from facts that the broker has in
memory, and from small files beside its logs; records are not read. Many logs are answered in parts:
`after` goes on behind the last one. A log that cannot be judged is a line that says why; brokers
that are away and have some of what was asked for are named. INVALID_REQUEST for anything else that
is asked, an `offset` without its one log, or an `after` that is no log.

v0 ours; not in ApiVersions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.request.asked_logs import asked_logs, away
from lapse.broker.request.authorize import (
    CLUSTER_REFUSED,
    TOPIC_REFUSED,
    Caller,
    message_of,
    whole,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.outlook.explain import HEALTH, SERVICE, Explained, Surroundings, unreadable_log
from lapse.lifecycle.outlook.plan import line_of, line_without_facts, policy_text
from lapse.lifecycle.outlook.rows import (
    Row,
    group_row,
    ledger_rows_of,
    micros,
    segment_row,
    unjudged,
)
from lapse.lifecycle.round.ledger import read as read_ledger
from lapse.lifecycle.round.ledger import read_last
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.status.reports import last_reports
from lapse.lifecycle.status.snapshot import read_status
from lapse.log.partition_log import PartitionLog
from lapse.security.acls import Operation
from lapse.wire.schema.describe_outlook import (
    DESCRIBE_OUTLOOK,
    ERASURES,
    EXPLAIN,
    FORESEEN_ROWS,
    LAST_GROUPS,
    LEDGER_ROWS,
    OVERVIEW,
    PLAN,
    PLAN_ROWS,
    PROOF,
    REPORTS,
    ROUNDS,
    SEGMENT_ROWS,
    DescribeOutlookRequest,
    DescribeOutlookResponse,
)

LOGS_MAX = 500  # of one answer
REPORTS_MAX = 500
GROUPS_MAX = 100  # of a log
_GONE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
ROWS_BYTES_MAX = 4 << 20  # of one answer, but that the rows of a log stay together

Lines = list[str]
Look = Callable[[Services, DescribeOutlookRequest, Sequence[TopicPartition]], Lines]


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeOutlookRequest
) -> DescribeOutlookResponse:
    """Look, in a thread, and answer."""
    after = None
    if request.after is not None:
        after = TopicPartition.parse(request.after)
    is_one = request.logs is not None and len(request.logs) == 1
    is_lost = request.after is not None and after is None
    if request.what not in (*_LOOKS, *_ROWS) or is_lost or (request.offset >= 0 and not is_one):
        words = (
            f"what: allowed is {', '.join([*_LOOKS, *_ROWS])}; offset: with exactly one log; "
            "after: the last log of an answer"
        )
        return DescribeOutlookResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=words)
    try:
        return await asyncio.to_thread(_look, services, request, after)
    except LapseError as e:
        code = e.code if isinstance(e, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeOutlookResponse(error_code=code, error_message=str(e))


def _look(
    services: Services, request: DescribeOutlookRequest, after: TopicPartition | None
) -> DescribeOutlookResponse:
    """In a thread: there may be ten thousand logs."""
    asked = asked_logs(services, request.logs, request.topic)
    me = services.config.node_id
    here = sorted(
        tp for tp, topic in asked if topic.is_at(tp.partition, me) and (after is None or tp > after)
    )
    if request.what in _ROWS:
        lines, count = _rows(services, request, here[:LOGS_MAX])
    else:
        chosen = here if request.what in _OF_BROKER else here[:LOGS_MAX]
        lines, count = _LOOKS[request.what](services, request, chosen), len(chosen)
    return DescribeOutlookResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        broker_id=me,
        lines=tuple(lines),
        last=str(here[count - 1]) if count < len(here) else None,
        away=() if after is not None else away(services, asked),
    )


def _explained(
    services: Services, request: DescribeOutlookRequest, logs: Sequence[TopicPartition]
) -> Lines:
    around = Surroundings.of(_data_dir(services), services.config, services.clock)
    lines = [] if request.after is not None else _of_broker(services, around)
    for tp in logs:
        try:
            offset = None if request.offset < 0 else request.offset
            line = around.explained(_info_of(services, tp, around.now_ms), offset)
        except (LapseError, OSError) as e:
            line = unreadable_log(str(tp), _policy_of(services, tp), e)
        lines.append(line)
    return [_json(replace(line, broker=services.config.node_id)) for line in lines]


def _of_broker(services: Services, around: Surroundings) -> list[Explained]:
    """What is out of order with the broker and its service."""
    found = [one for known in services.conditions for one in known()]
    lines = [Explained(HEALTH, "-", one.reason, str(one)) for one in found]
    if around.service_trouble is not None:
        lines.append(unreadable_log(SERVICE, "-", around.service_trouble))
    return lines


def _planned(
    services: Services, _request: DescribeOutlookRequest, logs: Sequence[TopicPartition]
) -> Lines:
    around = Surroundings.of(_data_dir(services), services.config, services.clock)
    lines = []
    for tp in logs:
        try:
            info = _info_of(services, tp, around.now_ms)
            line, _ = line_of(info, around.moment, around.memory)
        except (LapseError, OSError) as e:
            line = line_without_facts(str(tp), _policy_of(services, tp), str(e))
        lines.append(_json(replace(line, broker=services.config.node_id)))
    return lines


def _rounds(
    services: Services, _request: DescribeOutlookRequest, _logs: Sequence[TopicPartition]
) -> Lines:
    return [_json(read_status(_data_dir(services), services.clock.now_ms()))]


def _reports(
    services: Services, _request: DescribeOutlookRequest, _logs: Sequence[TopicPartition]
) -> Lines:
    return [*map(_json, last_reports(_data_dir(services), REPORTS_MAX))]


def _overview(
    services: Services, _request: DescribeOutlookRequest, _logs: Sequence[TopicPartition]
) -> Lines:
    return [_json(look()) for look in services.overviews]


def _erasures(
    services: Services, _request: DescribeOutlookRequest, _logs: Sequence[TopicPartition]
) -> Lines:
    return [*map(_json, services.erasures.seen())]


def _proof(
    services: Services, request: DescribeOutlookRequest, _logs: Sequence[TopicPartition]
) -> Lines:
    found = services.erasures.proof(request.file or "", request.topic or "")
    return [] if found is None else [found]


_LOOKS: dict[str, Look] = {
    EXPLAIN: _explained,
    PLAN: _planned,
    ROUNDS: _rounds,
    REPORTS: _reports,
    OVERVIEW: _overview,
    ERASURES: _erasures,
    PROOF: _proof,
}
_OF_BROKER = frozenset({ROUNDS, REPORTS, OVERVIEW, ERASURES, PROOF})  # whatever logs there are


def _rows(
    services: Services, request: DescribeOutlookRequest, logs: Sequence[TopicPartition]
) -> tuple[Lines, int]:
    """Rows of whole logs, until that is much; and of how many logs they are."""
    as_of_ms = request.now_ms if request.now_ms >= 0 else None
    around = Surroundings.of(_data_dir(services), services.config, services.clock, as_of_ms)
    lines: Lines = []
    size = 0
    for count, tp in enumerate(logs, 1):
        of_log = {
            "broker": services.config.node_id, "log_dir": _log_dir(services, tp),
            "topic": tp.topic, "partition": tp.partition, "as_of": micros(around.now_ms),
        }  # fmt: skip
        try:
            rows = [*_ROWS[request.what](services, tp, around)]
        except KafkaError as e:
            if e.code in _GONE:
                continue  # its topic was deleted, or it has moved, since it was listed
            raise
        some = [_json({**of_log, **row}) for row in rows]
        lines += some
        size += sum(map(len, some))
        if size >= ROWS_BYTES_MAX:
            return lines, count
    return lines, len(logs)


def _log_dir(services: Services, tp: TopicPartition) -> str | None:
    try:
        return str(services.partitions.directory_of(tp).path)
    except KafkaError:
        return None


def _plan_rows(services: Services, tp: TopicPartition, around: Surroundings) -> Iterator[Row]:
    return _judged(services, tp, around, around.planned)


def _foreseen_rows(services: Services, tp: TopicPartition, around: Surroundings) -> Iterator[Row]:
    return _judged(services, tp, around, around.foreseen)


def _judged(
    services: Services, tp: TopicPartition, around: Surroundings, judge: Callable[[LogInfo], Row]
) -> Iterator[Row]:
    try:
        row = judge(_info_of(services, tp, around.now_ms))
    except (LapseError, OSError) as e:
        if isinstance(e, KafkaError) and e.code in _GONE:
            raise
        row = unjudged("unreadable", str(e))
    yield row


def _segment_rows(services: Services, tp: TopicPartition, _: Surroundings) -> Iterator[Row]:
    for segment in _online(services, tp).facts().segments:
        yield segment_row(segment)


def _ledger_rows(services: Services, tp: TopicPartition, _: Surroundings) -> Iterator[Row]:
    folder = _online(services, tp).dir
    for entry in read_ledger(folder):
        yield from ledger_rows_of(entry, folder)


def _last_groups(services: Services, tp: TopicPartition, _: Surroundings) -> Iterator[Row]:
    folder = Path(_online(services, tp).dir)
    for entry in read_last(folder, GROUPS_MAX):
        yield group_row(entry, folder)


_ROWS: dict[str, Callable[[Services, TopicPartition, Surroundings], Iterator[Row]]] = {
    PLAN_ROWS: _plan_rows,
    FORESEEN_ROWS: _foreseen_rows,
    SEGMENT_ROWS: _segment_rows,
    LEDGER_ROWS: _ledger_rows,
    LAST_GROUPS: _last_groups,
}


def _info_of(services: Services, partition: TopicPartition, now_ms: int) -> LogInfo:
    """What rounds would go by; raises as `_online`."""
    log = _online(services, partition)
    return info_of(log.facts(), log.config, now_ms)


def _online(services: Services, partition: TopicPartition) -> PartitionLog:
    """Raises KAFKA_STORAGE_ERROR where the log is offline, and as `Partitions.get`."""
    log = services.partitions.get(partition)
    if log.offline_reason is not None:
        words = f"{partition}: offline: {log.offline_reason}"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, words)
    return log


def _policy_of(services: Services, partition: TopicPartition) -> str:
    topic = services.topics.image.topics.get(partition.topic)
    return "-" if topic is None else policy_text(topic.config)


def _data_dir(services: Services) -> Path:
    """Where the lifecycle service's files are."""
    return services.partitions.data_dir


def _json(line: object) -> str:
    return msgspec.json.encode(line).decode()


def _may(caller: Caller, request: DescribeOutlookRequest) -> bool:
    """A proof has salted hashes of keys: it is for who may read those anyway."""
    if request.what == PROOF and not caller.may_topic(Operation.READ, request.topic or ""):
        return False
    return caller.may_cluster(Operation.DESCRIBE)


def _refused(request: DescribeOutlookRequest) -> DescribeOutlookResponse:
    code = TOPIC_REFUSED if request.what == PROOF else CLUSTER_REFUSED
    return DescribeOutlookResponse(error_code=code, error_message=message_of(code))


API = Endpoint(
    DESCRIBE_OUTLOOK,
    DescribeOutlookRequest,
    DescribeOutlookResponse,
    handle,
    whole(_may, _refused),
)
