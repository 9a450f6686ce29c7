"""DescribeOutlook (key 10000): what holds this broker's logs back, what its rounds would do.

Needs DESCRIBE cluster.

Behaviour: `explain` and `plan` answer a line for each log that this broker has, as the commands of
that name print it with `--json`; `rounds` one line, of the lifecycle service. All comes from facts
that the broker has in memory, and from small files beside its logs; records are not read. Many logs
are answered in parts: `after` goes on behind the last one. A log that cannot be judged is a line
that says why; brokers that are away and have some of what was asked for are named. INVALID_REQUEST
for anything else that is asked, an `offset` without its one log, or an `after` that is no log.

v0 ours; not in ApiVersions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.request.asked_logs import asked_logs, away
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.outlook.explain import HEALTH, SERVICE, Explained, Surroundings, unreadable_log
from lapse.lifecycle.outlook.plan import line_of, line_without_facts, policy_text
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.status.snapshot import read_status
from lapse.security.acls import Operation
from lapse.wire.schema.describe_outlook import (
    DESCRIBE_OUTLOOK,
    EXPLAIN,
    PLAN,
    ROUNDS,
    DescribeOutlookRequest,
    DescribeOutlookResponse,
)

LINES_MAX = 500  # of one answer

Lines = list[str]
Look = Callable[[Services, DescribeOutlookRequest, Sequence[TopicPartition]], Lines]


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeOutlookRequest
) -> DescribeOutlookResponse:
    """Look, in a thread, and answer."""
    look, after = _LOOKS.get(request.what), None
    if request.after is not None:
        after = TopicPartition.parse(request.after)
    is_one = request.logs is not None and len(request.logs) == 1
    is_lost = request.after is not None and after is None
    if look is None or is_lost or (request.offset >= 0 and not is_one):
        words = (
            f"what: allowed is {', '.join(_LOOKS)}; offset: with exactly one log; after: the last "
            "log of an answer"
        )
        return DescribeOutlookResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=words)
    try:
        return await asyncio.to_thread(_look, services, request, after, look)
    except LapseError as e:
        code = e.code if isinstance(e, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeOutlookResponse(error_code=code, error_message=str(e))


def _look(
    services: Services, request: DescribeOutlookRequest, after: TopicPartition | None, look: Look
) -> DescribeOutlookResponse:
    """In a thread: there may be ten thousand logs."""
    asked = asked_logs(services, request.logs, request.topic)
    me = services.config.node_id
    here = sorted(
        tp for tp, topic in asked if topic.is_at(tp.partition, me) and (after is None or tp > after)
    )
    chosen = here if request.what == ROUNDS else here[:LINES_MAX]
    return DescribeOutlookResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        broker_id=me,
        lines=tuple(look(services, request, chosen)),
        last=str(chosen[-1]) if len(chosen) < len(here) else None,
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
            line, _ = line_of(info, around.now_ms, around.memory)
        except (LapseError, OSError) as e:
            line = line_without_facts(str(tp), _policy_of(services, tp), str(e))
        lines.append(_json(replace(line, broker=services.config.node_id)))
    return lines


def _rounds(
    services: Services, _request: DescribeOutlookRequest, _logs: Sequence[TopicPartition]
) -> Lines:
    return [_json(read_status(_data_dir(services), services.clock.now_ms()))]


_LOOKS: dict[str, Look] = {
    EXPLAIN: _explained,
    PLAN: _planned,
    ROUNDS: _rounds,
}


def _info_of(services: Services, partition: TopicPartition, now_ms: int) -> LogInfo:
    """What rounds would go by; raises KAFKA_STORAGE_ERROR where the log is offline."""
    log = services.partitions.get(partition)
    if log.offline_reason is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"offline: {log.offline_reason}")
    return info_of(log.facts(), log.config, now_ms)


def _policy_of(services: Services, partition: TopicPartition) -> str:
    topic = services.topics.image.topics.get(partition.topic)
    return "-" if topic is None else policy_text(topic.config)


def _data_dir(services: Services) -> Path:
    """Where the lifecycle service's files are."""
    return services.partitions.data_dir


def _json(line: object) -> str:
    return msgspec.json.encode(line).decode()


API = Endpoint(
    DESCRIBE_OUTLOOK,
    DescribeOutlookRequest,
    DescribeOutlookResponse,
    handle,
    of_cluster(Operation.DESCRIBE, DescribeOutlookResponse(**CLUSTER_REFUSAL)),
)
