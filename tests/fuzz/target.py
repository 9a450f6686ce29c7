"""What a fuzz target is, and what all of them hold against the code."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lapse.base.errors import CorruptData, KafkaError, LapseError

WHERE = "fuzz-0"
DATA = "data"
T = TypeVar("T")
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        share: of 1000 cases.
        make: a case's input, by file name.
        check: raises whatever shows that the code is wrong; `folder` is empty, and emptied after.
    """

    name: str
    share: int
    make: Callable[[random.Random], Files]
    check: Callable[[Files, random.Random, Path], None]


def rng_of(seed: int, target: str, number: int) -> random.Random:
    """All randomness of one case."""
    return random.Random(f"{seed}/{target}/{number}")


def one_file(
    name: str,
    share: int,
    make: Callable[[random.Random], bytes],
    check: Callable[[bytes, random.Random, Path], None],
) -> Target:
    """A target whose input is some bytes."""
    return Target(
        name,
        share,
        lambda rng: {DATA: make(rng)},
        lambda files, rng, folder: check(files[DATA], rng, folder),
    )


def require(right: bool, text: str) -> None:
    """As `assert`, where an exception is being looked at."""
    if not right:
        raise AssertionError(text)


def told(call: Callable[[], T], where: str = WHERE, size: int | None = None) -> T | None:
    """The result, or None where the bytes were refused as they should be.

    A refusal names the file or partition and, unless it is an answer to a client, a position in it.
    """
    try:
        return call()
    except CorruptData as e:
        require(where in e.where, f"{e!r} does not name {where}")
        require(size is None or 0 <= e.position <= size, f"{e!r} is not within {size} bytes")
        return None
    except KafkaError as e:
        require(where in str(e), f"{e!r} does not name {where}")
        return None


def refused(call: Callable[[], T]) -> T | None:
    """As `told`, for what has no place of its own, as a record's key."""
    try:
        return call()
    except LapseError as e:
        require(bool(str(e)), repr(e))
        return None
