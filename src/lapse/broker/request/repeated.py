"""What a request names more than once: refused, or a row for each time in the answer.

A row may be far larger than the name that asks for it, so it is made once, and the answer holds the
same object again: else a few kilobytes would keep the event loop busy for seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from lapse.base.errors import ErrorCode, KafkaError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


def named_twice(what: str) -> KafkaError:
    """The refusal of what may be named once."""
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{what} is named more than once")


async def for_each(keys: Sequence[K], make: Callable[[K], Awaitable[R]]) -> list[R]:
    """What `make` makes of each key, in their order; once of those that are equal."""
    made = {key: await make(key) for key in dict.fromkeys(keys)}
    return [made[key] for key in keys]


def changed(rows: Iterable[T], change: Callable[[T], R]) -> tuple[R, ...]:
    """What `change` makes of each row, in their order; once of those that are one object."""
    rows = tuple(rows)  # it keeps them, and so their identities
    made = {id(row): row for row in rows}
    done = {identity: change(row) for identity, row in made.items()}
    return tuple([done[id(row)] for row in rows])
