"""Numbers, moments and foreign bytes as words of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from lapse.base.clock import time_text
from lapse.base.readable import readable, readable_text
from lapse.base.sizes import size_text
from lapse.base.times import FOREVER_MS, duration

SHOWN_BYTES_MAX = 512  # of a key or a value


def size(n_bytes: float | None) -> str:
    """`1.2 GiB`; a dash for what is not known."""
    return "–" if n_bytes is None else size_text(n_bytes)


def count(number: int | None) -> str:
    """With a space at each thousand at which no line breaks."""
    return "–" if number is None else f"{number:,}".replace(",", "\u202f")


def percent(share: float | None) -> str:
    """Of one; whole."""
    return "–" if share is None else f"{100 * share:.0f} %"


def span(ms: int | None) -> str:
    """`3.2 h`."""
    if ms is None:
        return "–"
    return "for ever" if ms >= FOREVER_MS else duration(ms)


def moment(ms: int | None) -> str:
    """A time, UTC."""
    return "–" if ms is None or ms < 0 else time_text(ms)


def machine_time(ms: int | None) -> str:
    """For `datetime=`; empty where a calendar has no such day."""
    try:
        return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def until(ms: int | None, now_ms: int) -> str:
    """`in 3.2 h`, `2.0 m ago`."""
    if ms is None:
        return "–"
    if ms >= FOREVER_MS:
        return "never"
    if ms == now_ms:
        return "now"
    return f"in {duration(ms - now_ms)}" if ms > now_ms else f"{duration(now_ms - ms)} ago"


def from_micros(micros: int | None) -> int | None:
    """Rows of views have microseconds."""
    return None if micros is None else micros // 1000


def data(value: bytes | None) -> str:
    """A key or a value, cut where it is long; nothing in it is more than text."""
    if value is None:
        return ""
    if len(value) <= SHOWN_BYTES_MAX:
        return readable(value)
    return f"{readable(value[:SHOWN_BYTES_MAX])} … ({size(len(value))} in all)"


def counted(number: int, one: str, many: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count(number)} {one if number == 1 else many}"


FILTERS: Mapping[str, Callable[..., object]] = {
    "size": size,
    "count": count,
    "percent": percent,
    "span": span,
    "moment": moment,
    "machine_time": machine_time,
    "until": until,
    "from_micros": from_micros,
    "data": data,
    "counted": counted,
    "readable": readable_text,
}
