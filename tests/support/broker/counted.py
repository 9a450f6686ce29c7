"""What counts how often it is gone through: what grows with its square can be seen by that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from lapse.metadata.image import Image

T = TypeVar("T")


class Counted(tuple[T, ...]):  # noqa: SLOT001  (a tuple cannot have any)
    """Items, and how often somebody began with the first of them."""

    looks = 0

    def __iter__(self) -> Iterator[T]:
        self.looks += 1
        return super().__iter__()


class _CountedDict(dict[str, T]):
    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


def counted(image: Image) -> tuple[Image, Callable[[], int]]:
    """The same image, and how often its topics were gone through."""
    topics = _CountedDict(image.topics)
    return replace(image, topics=topics), lambda: topics.looks
