"""What a refused caller is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

TOPIC, GROUP, CLUSTER = 29, 30, 31
REFUSALS = {TOPIC, GROUP, CLUSTER, 53, 65}


def codes_in(message: Any) -> Iterator[int]:
    """Every error code of an answer, but that of settings nobody asked for."""
    if isinstance(message, tuple):
        for item in message:
            yield from codes_in(item)
    elif is_dataclass(message):
        for one in fields(message):
            value = getattr(message, one.name)
            if one.name.endswith("error_code") and one.name != "topic_config_error_code":
                yield value
            yield from codes_in(value)
