"""Names that differ only in '.' and '_'."""

from __future__ import annotations

import uuid

import pytest

from lapse.base.config import topic_config
from lapse.base.errors import KafkaError
from lapse.broker.logs.flat_names import FlatNames
from lapse.metadata.image import Image, Topic
from tests.support.broker.counted import counted


def image_of(*names: str) -> Image:
    return Image.of("c", (Topic(name, uuid.uuid4(), 1, {}, topic_config({})) for name in names))


def test_what_collides() -> None:
    names, image = FlatNames(), image_of("a.b", "c")
    with pytest.raises(KafkaError, match=r"'a_b' collides with 'a\.b'"):
        names.require_none_like("a_b", image)
    for name in ("ab", "a.b"):  # a topic itself is no other
        names.require_none_like(name, image)
    names.require_none_like("a_b", image_of("c"))


def test_the_topics_are_looked_through_once() -> None:
    """Each time they change, and not for each name that is to be new."""
    image, looks = counted(image_of("a.b", "c"))
    names = FlatNames()
    for n in range(20):
        names.require_none_like(f"new-{n}", image)
    assert looks() == 1
