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
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import TOPIC_REFUSED, Caller, Handle, message_of
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, Mutations, always
from lapse.broker.request.repeated import named_twice
from lapse.broker.request.throttle import charge_mutations, within_quota
from lapse.metadata.image import Image, Topic
from lapse.metadata.store import no_topic
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
    states = _states(request)
    twice = _named_twice(services.topics.image, states)
    answers = []
    for state in dict.fromkeys(states):
        try:
            topic = _find(services.topics.image, state, twice)
            charge_mutations(services, session, topic.partitions, strict=version >= STRICT_FROM)
            await services.topics.delete(topic)
        except KafkaError as e:
            is_gone = state.name is not None and e.code == ErrorCode.UNKNOWN_TOPIC_ID
            answers.append(_failed(state, _no_topic(state) if is_gone else e))
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
    twice = _named_twice(image, states)

    def partitions(state: DeleteTopicState) -> int:
        return _find(image, state, twice).partitions

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


def _named_twice(image: Image, states: Sequence[DeleteTopicState]) -> set[DeleteTopicState]:
    """Those of a topic that another one names too, be it by its name or by its id."""

    def meant(state: DeleteTopicState) -> object:
        topic = None if state.name is None else image.topics.get(state.name)
        return (state.name or state.topic_id) if topic is None else topic.topic_id

    times = Counter(map(meant, states))
    return {state for state in states if times[meant(state)] > 1}


def _find(image: Image, state: DeleteTopicState, twice: Collection[DeleteTopicState]) -> Topic:
    if state in twice:
        raise named_twice("the topic")
    if (state.name is None) == (state.topic_id == ZERO_UUID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, and not both")
    of_name = image.topics.get(state.name or "")
    topic = image.ids.get(state.topic_id) if state.name is None else of_name
    if topic is None:
        raise _no_topic(state)
    return topic


def _no_topic(state: DeleteTopicState) -> KafkaError:
    if state.name is None:
        return no_topic(state.topic_id)
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {state.name!r}")


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
