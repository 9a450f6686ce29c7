"""DeleteTopics (key 20).

v1 throttle time · v2 throttled after the answer is sent (KIP-219) · v3 TOPIC_DELETION_DISABLED
(KIP-322) · v4 flexible · v5 error message (KIP-599) · v6 topics by name or id (KIP-516).
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    INT16,
    INT32,
    STRING,
    UUID,
    ZERO_UUID,
    api,
    array,
    field,
    request,
    response,
    struct,
)

DELETE_TOPICS = api(20, "DeleteTopics", versions="1-6", flexible="4+")


@struct
class DeleteTopicState:
    """A topic by name, or by id where the name is null."""

    name: str | None = field(STRING, "6+", nullable="6+", default=None)
    topic_id: uuid.UUID = field(UUID, "6+", default=ZERO_UUID)


@request(DELETE_TOPICS)
class DeleteTopicsRequest:
    """Up to v5 `topic_names`, from v6 `topics`."""

    topics: tuple[DeleteTopicState, ...] = field(array(DeleteTopicState), "6+", default=())
    topic_names: tuple[str, ...] = field(array(STRING), "0-5", default=(), ignorable=True)
    timeout_ms: int = field(INT32)


@struct
class DeletableTopicResult:
    """What became of one topic; its name is null where only an unknown id was given."""

    name: str | None = field(STRING, nullable="6+")
    topic_id: uuid.UUID = field(UUID, "6+", default=ZERO_UUID, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


@response(DELETE_TOPICS)
class DeleteTopicsResponse:
    """Answers per topic."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = field(array(DeletableTopicResult))
