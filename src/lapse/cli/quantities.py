"""Numbers, sizes and times as options have them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import timedelta

from lapse.base.errors import ConfigError
from lapse.base.setting import LONG_MAX
from lapse.base.typed import EPOCH, whole

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
    number = whole(text[:-1] if unit > 1 else text)
    if not number:
        raise ConfigError(f"{option} {text}: allowed is a size such as 2g, 768m or 1048576")
    return number * unit


def moment_text(ms: int) -> str:
    """To the millisecond, in UTC; beyond any calendar the number, since a producer may send any."""
    try:
        moment = EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
