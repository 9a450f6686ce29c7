"""DescribeOutlook (key 10000): what holds this broker's logs back, what its rounds would do.

Needs DESCRIBE cluster.

Behaviour: `explain` and `plan` answer a line for each log that this broker has, as the commands of
that name print it with `--json`; `rounds` one line, of the lifecycle service. All comes from facts
that the broker has in memory, and from small files beside its logs; records are not read. Many logs
are answered in parts: `after` goes on behind the last one. A log that cannot be judged is a line
that says why. INVALID_REQUEST for anything else that is asked, or an `offset` without its one log.

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


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeOutlookRequest
) -> DescribeOutlookResponse:
    """Look, in a thread, and answer."""
    look = _LOOKS.get(request.what)
    is_one = request.logs is not None and len(request.logs) == 1
    if look is None or (request.offset >= 0 and not is_one):
        words = f"what: allowed is {', '.join(_LOOKS)}; offset: with exactly one log"
        return DescribeOutlookResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=words)
    chosen = sorted(_chosen(services, request))
    more = len(chosen) > LINES_MAX and request.what != ROUNDS
    try:
        lines = await asyncio.to_thread(look, services, request, chosen[:LINES_MAX])
    except LapseError as e:
        code = e.code if isinstance(e, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeOutlookResponse(error_code=code, error_message=str(e))
    return DescribeOutlookResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        broker_id=services.config.node_id,
        lines=tuple(lines),
        last=str(chosen[LINES_MAX - 1]) if more else None,
    )


def _chosen(services: Services, request: DescribeOutlookRequest) -> list[TopicPartition]:
    """The logs that this broker has, or should have, among those that were asked for."""
    topics = services.topics.image.topics.values()
    here = [tp for topic in topics for tp in topic.of_broker(services.config.node_id)]
    last = None if request.after is None else TopicPartition.parse(request.after)
    return [
        tp
        for tp in here
        if (request.topic is None or tp.topic == request.topic)
        and (request.logs is None or str(tp) in request.logs)
        and (last is None or tp > last)
    ]


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


_LOOKS: dict[str, Callable[[Services, DescribeOutlookRequest, Sequence[TopicPartition]], Lines]] = {
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
