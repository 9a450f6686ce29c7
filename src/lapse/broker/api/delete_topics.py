"""DeleteTopics (key 20): delete topics with their records.

Needs DELETE topic.

Behaviour: clients no longer see a topic when the broker responds; its files are renamed by then and
unlinked after `file.delete.delay.ms`. Errors are per topic: UNKNOWN_TOPIC_OR_PARTITION for a name,
UNKNOWN_TOPIC_ID for an id, INVALID_REQUEST for a topic named twice or by name and id at once.

v1-5 by name · v5 error message; topics beyond the client's quota of partitions are
THROTTLING_QUOTA_EXCEEDED, older clients are throttled (KIP-599) · v6 by name or id.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import TOPIC_REFUSED, Caller, Handle, message_of
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, Mutations, always
from lapse.broker.request.repeated import named_twice
from lapse.broker.request.throttle import charge_mutations, within_quota
from lapse.metadata.image import Image, Topic
from lapse.security.acls import Operation
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema.delete_topics import (
    DELETE_TOPICS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

STRICT_FROM = 5


async def handle(
    services: Services, session: Session, version: int, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete every topic that passes the checks."""
    times = Counter(_states(request))
    answers = []
    for state in times:
        try:
            topic = _find(services.topics.image, state, times[state])
            charge_mutations(services, session, topic.partitions, strict=version >= STRICT_FROM)
            await services.topics.delete(topic)
            services.counters.topics.pop(topic.name, None)
        except KafkaError as e:
            answers.append(_failed(state, e))
        else:
            answers.append(
                DeletableTopicResult(
                    name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.NONE
                )
            )
    return DeleteTopicsResponse(responses=tuple(answers))


def _charge(
    services: Services, session: Session, version: int, request: DeleteTopicsRequest
) -> tuple[DeleteTopicsRequest | None, tuple[DeletableTopicResult, ...]]:
    states, image = _states(request), services.topics.image
    times = Counter(states)

    def partitions(state: DeleteTopicState) -> int:
        return _find(image, state, times[state]).partitions

    strict = version >= STRICT_FROM
    fine, refused = within_quota(services, session, states, partitions, strict=strict)
    results = tuple(_failed(state, e) for state, e in refused)
    return (_only(request, fine) if fine or not refused else None), results


def _states(request: DeleteTopicsRequest) -> tuple[DeleteTopicState, ...]:
    return request.topics or tuple(DeleteTopicState(name=name) for name in request.topic_names)


def _only(
    request: DeleteTopicsRequest, states: tuple[DeleteTopicState, ...]
) -> DeleteTopicsRequest:
    """The request for these of its topics, as its version can say it."""
    if request.topics:
        return replace(request, topics=states)
    return replace(request, topic_names=tuple(s.name for s in states if s.name is not None))


def _failed(state: DeleteTopicState, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=str(error)
    )


def _find(image: Image, state: DeleteTopicState, times: int) -> Topic:
    if times > 1:
        raise named_twice("the topic")
    if state.name is None:
        topic = image.ids.get(state.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {state.topic_id}")
        return topic
    if state.topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
    topic = image.topics.get(state.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {state.name!r}")
    return topic


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, _version: int, request: DeleteTopicsRequest, handle: Handle
) -> Any:
    ids = caller.services.topics.image.ids

    def may(state: DeleteTopicState) -> bool:
        if state.name is not None:
            return caller.may_topic(Operation.DELETE, state.name)
        known = ids.get(state.topic_id)
        return known is None or caller.may_topic(Operation.DELETE, known.name)

    fine, others = caller.split_by_permission(_states(request), may)
    if not others:
        return await handle(request)
    answer = await handle(_only(request, fine))
    refused = tuple(
        DeletableTopicResult(
            name=state.name,
            topic_id=state.topic_id if state.name is None else ZERO_UUID,
            error_code=TOPIC_REFUSED,
            error_message=message_of(TOPIC_REFUSED),
        )
        for state in others
    )
    return replace(answer, responses=(*answer.responses, *refused))


API = Endpoint(
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    handle,
    _authorize,
    by_controller=always,
    mutations=Mutations("responses", _charge),
)
