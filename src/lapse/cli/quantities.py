"""Numbers, sizes and times as options have them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from lapse.base.errors import ConfigError
from lapse.base.setting import LONG_MAX

_DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
EPOCH = datetime.fromtimestamp(0, UTC)
_AGES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def whole_number(least: int = 0, most: int = LONG_MAX) -> Callable[[str], int]:
    """For argparse: a number that the program, and Kafka's messages, can hold."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(
                f"{text}: allowed is a whole number from {least} to {most}"
            )
        return found

    return number


def byte_size(option: str, text: str) -> int:
    """`2g`, `768m`, `64k` or plain bytes; raises ConfigError."""
    unit = _UNITS.get(text[-1:].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise ConfigError(f"{option} {text}: allowed is a size such as 2g, 768m or 1048576")
    return int(digits) * unit


def duration_ms(option: str, text: str) -> int:
    """`90s`, `15m`, `2h`, `1d` or `500ms`; raises ConfigError."""
    digits = text.rstrip("dhms")
    unit_ms = _DURATIONS_MS.get(text[len(digits) :])
    if unit_ms is None or not digits.isdigit() or int(digits) == 0:
        raise ConfigError(f"{option} {text}: allowed is a time such as 90s, 15m, 2h or 1d")
    return int(digits) * unit_ms


def moment_of(text: str, now: datetime) -> datetime | None:
    """Milliseconds since 1970, an age such as 30d, or a time with a zone; None: it is none."""
    number, unit = text[:-1], text[-1:]
    try:
        if text.isdecimal():
            return EPOCH + timedelta(milliseconds=int(text))
        if unit in _AGES and number.isdecimal():
            return now - timedelta(**{_AGES[unit]: int(number)})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else None


def moment_text(ms: int) -> str:
    """To the millisecond, in UTC; beyond any calendar the number, since a producer may send any."""
    try:
        moment = EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
