"""Records of Kafka's metadata log (KRaft): the three that say which topics there are and how set.

Not messages of an API; they are declared with the same tools because they are encoded the same
way. `metadata.kraft` reads them.
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import INT8, STRING, UUID, field, header


@header(versions="0-0", flexible="0+")
class TopicRecord:
    """A topic appears (type 2)."""

    name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID)


@header(versions="0-0", flexible="0+")
class ConfigRecord:
    """A setting of a topic (resource type 2) or a broker (4) changes; null removes it (type 4)."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@header(versions="0-0", flexible="0+")
class RemoveTopicRecord:
    """A topic goes (type 9)."""

    topic_id: uuid.UUID = field(UUID)
