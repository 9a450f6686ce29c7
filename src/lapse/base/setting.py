"""What one setting is: its name, type, default, what its text may be, and what it is for.

The rows are in `config`. A form turns text into a value and says in words what is allowed, which is
what a user reads in errors and docs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from lapse.base.secret import Secret

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1

Parser = Callable[[str], Any]


class Kind(IntEnum):
    """Types of settings, by the numbers of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Form:
    """What a setting's text may be; `parse` raises ValueError saying what is allowed."""

    kind: Kind
    parse: Parser


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        name: as a user writes it (topic name, or `server.properties` name).
        form: what it may be.
        default: as text, so that it passes the same parser.
        synonyms: broker settings a topic setting falls back to, first set wins; the second item
            of each pair multiplies (hours to milliseconds).
        doc: one sentence for people.
        dynamic: of a broker's own setting, whether it may be changed while the broker runs.
        zero_for_all: whether 0, which the topic's own may be, may be the broker's for all topics.
    """

    name: str
    form: Form
    default: str
    doc: str
    synonyms: tuple[tuple[str, int], ...] = ()
    dynamic: bool = False
    zero_for_all: bool = True

    @property
    def field(self) -> str:
        """Attribute name in the config dataclass."""
        return self.name.removeprefix("lapse.").replace(".", "_")

    @property
    def kind(self) -> Kind:
        return self.form.kind

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Any:
        """Text to value; raises ValueError saying what is allowed."""
        return self.form.parse(text)

    def parse_as(self, name: str, text: str) -> Any:
        """Likewise, for one of its names: a synonym's value counts in units of its own."""
        value, factors = self.parse(text), dict(self.synonyms)
        if value == 0 and name in factors and not self.zero_for_all:
            raise ValueError("-1, which is no limit, or a whole number from 1")
        factor = factors.get(name, 1)
        return self.parse(str(value * factor)) if factor != 1 and value > 0 else value


def _as_kafka(number: str) -> str:
    """Raises ValueError for `1_000`: a number to Python, and none to Kafka."""
    if "_" in number:
        raise ValueError(number)
    return number


def whole(least: int, greatest: int = LONG_MAX) -> Form:
    """A whole number in [least, greatest]."""

    def parse(text: str) -> int:
        allowed = f"a whole number from {least}" + (
            "" if greatest == LONG_MAX else f" to {greatest}"
        )
        try:
            value = int(_as_kafka(text))
        except ValueError:
            raise ValueError(allowed) from None
        if not least <= value <= greatest:
            raise ValueError(allowed)
        return value

    return Form(Kind.INT if greatest <= INT_MAX else Kind.LONG, parse)


def _decimal(allowed: str, is_allowed: Callable[[float], bool]) -> Form:
    """A number with a fraction."""

    def parse(text: str) -> float:
        try:
            value = float(_as_kafka(text))
        except ValueError:
            raise ValueError(allowed) from None
        if not is_allowed(value):
            raise ValueError(allowed)
        return value

    return Form(Kind.DOUBLE, parse)


def one_of(*allowed: str) -> Form:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in allowed:
            words = ", ".join(word or "nothing" for word in allowed)
            raise ValueError(f"one of {words}")
        return text

    return Form(Kind.STRING, parse)


def list_of(*allowed: str, needed: str = "") -> Form:
    """Some of a few words, at least one, each once, in the order given; `needed` is among them."""

    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        is_set = parts and len(set(parts)) == len(parts) and set(parts) <= set(allowed)
        if not is_set or (needed and needed not in parts):
            among = f", {needed} among them" if needed else ""
            raise ValueError("a list of " + ", ".join(allowed) + ", each once" + among)
        return parts

    return Form(Kind.LIST, parse)


def _parse_policy(text: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not parts <= {"compact", "delete"}:
        raise ValueError("a list of compact and delete")
    return parts


_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def _parse_throttled(text: str) -> frozenset[str]:
    """As Kafka's ThrottledReplicaListValidator."""
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    if parts != {"*"} and not all(map(_REPLICA.fullmatch, parts)):
        raise ValueError("*, or a list of PARTITION:BROKER")
    return parts


def _parse_boolean(text: str) -> bool:
    return bool(one_of("true", "false").parse(text.lower()) == "true")


def _parse_timestamp_type(text: str) -> int:
    return ("CreateTime", "LogAppendTime").index(one_of("CreateTime", "LogAppendTime").parse(text))


_FORMAT_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)*(-IV\d+)?")


def _parse_format_version(text: str) -> int:
    """A Kafka version, as the magic byte of the format it wrote: KIP-32 came with 0.10.0."""
    found = _FORMAT_VERSION.fullmatch(text)
    if found is None or (int(found[1]) == 0 and int(found[2]) < 8):
        raise ValueError("a Kafka version from 0.8.0 on, such as 0.9.0, 0.10.2 or 3.0")
    version = int(found[1]), int(found[2])
    return 0 if version < (0, 10) else 1 if version < (0, 11) else 2


MILLISECONDS = whole(0)
RATIO = _decimal("a number from 0 to 1", lambda value: 0 <= value <= 1)
# Bytes a second; Kafka's default is the greatest double, which is no limit.
RATE = _decimal("a number above 0", lambda value: value > 0)
POLICY = Form(Kind.LIST, _parse_policy)
THROTTLED = Form(Kind.LIST, _parse_throttled)
BOOLEAN = Form(Kind.BOOLEAN, _parse_boolean)
TEXT = Form(Kind.STRING, str)
TIMESTAMP_TYPE = Form(Kind.STRING, _parse_timestamp_type)
MESSAGE_FORMAT = Form(Kind.STRING, _parse_format_version)
PASSWORD = Form(Kind.PASSWORD, Secret)
