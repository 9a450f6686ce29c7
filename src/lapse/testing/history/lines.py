"""Histories as JSON lines, one event a line: `{"event": "Sent", "at_ms": …}`.

Bytes are base64. A torn last line, which a killed recorder leaves, ends a history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

import msgspec

from lapse.base.errors import LapseError
from lapse.testing.history.events import Event

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


class BadLine(LapseError):
    """A line that is no event."""


def to_line(event: Event) -> bytes:
    """One line, with its end."""
    fields = {"event": type(event).__name__, **msgspec.to_builtins(event)}
    return msgspec.json.encode(fields) + b"\n"


def of_lines(lines: Iterable[bytes], name: str = "history") -> Iterator[Event]:
    """Events, in the order of the lines. Raises BadLine; `name` is for its message."""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return  # torn
        try:
            fields = msgspec.json.decode(line)
            yield msgspec.convert(fields, _EVENTS[fields.pop("event")])
        except (msgspec.MsgspecError, KeyError, AttributeError, TypeError) as e:
            raise BadLine(f"{name}, line {number}, is no event: {e}") from None
