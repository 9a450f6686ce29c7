"""Numbers, durations and moments as people type them, in commands and on pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lapse.base.errors import ConfigError
from lapse.base.times import UNITS_MS

_DURATIONS_MS = {"ms": 1, **UNITS_MS}
EPOCH = datetime.fromtimestamp(0, UTC)
_AGES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DIGITS_MAX = 19  # of a long


def whole(text: str) -> int | None:
    """A whole number from 0 in ASCII's digits, no more than a long has; None: it is none."""
    is_one = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_one else None


def duration_ms(option: str, text: str) -> int:
    """`90s`, `15m`, `2h`, `1d` or `500ms`; raises ConfigError."""
    digits = text.rstrip("dhms")
    unit_ms = _DURATIONS_MS.get(text[len(digits) :])
    number = whole(digits)
    if unit_ms is None or not number:
        raise ConfigError(f"{option} {text}: allowed is a time such as 90s, 15m, 2h or 1d")
    return number * unit_ms


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
