"""The options of a view as text, as a Spark reader has them, to `ViewOptions`.

Topic and broker settings are options by Kafka's names (`cleanup.policy`). Names do not care for
case, as all options of Spark. What is unknown is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from lapse.base.config import split_settings
from lapse.base.errors import ConfigError
from lapse.spark.views.spec import ViewFilter, ViewOptions

OPTIONS: Mapping[str, str] = {
    "view": "segments, plan, ledger or keys",
    "path": "log directories or partition directories, comma-separated",
    "subscribe": "topics, comma-separated (default: all)",
    "now": "ms; judge as of this moment (default: when the query is planned)",
    "estimates": "true: read no segment for its row, tell what can be told without (default false)",
    "maxLogsPerPartition": "at most so many logs a Spark partition (default 64)",
    "maxMemoryBytes": "what the keys of a task may take (default 256 MiB)",
    "kafka.isolation.level": "keys: read_uncommitted (default) or read_committed",
    "failOnDataLoss": "keys: false to go on where records vanish meanwhile (default true)",
}
_BROKERS = "kafka.bootstrap.servers"
_BY_LOWER = {name.lower(): name for name in OPTIONS}
_ISOLATION = {"read_uncommitted": False, "read_committed": True}
_BOOLEANS = {"true": True, "false": False}

T = TypeVar("T")


def parse_view_options(given: Mapping[str, str], now_ms: int) -> ViewOptions:
    """What was asked for; `now_ms` unless it says otherwise.

    Raises ConfigError naming the option, what it was, and what is allowed.
    """
    options = {_BY_LOWER[name.lower()]: t for name, t in given.items() if name.lower() in _BY_LOWER}
    settings = {name: text for name, text in given.items() if name.lower() not in _BY_LOWER}
    if any(name.lower() == _BROKERS for name in given):
        raise ConfigError(f"a view is of files: option path in place of {_BROKERS}")
    split_settings(settings)  # raises on what is neither an option nor a setting
    plain = ViewOptions(options.get("view", ""), (), now_ms)
    none: tuple[str, ...] = ()

    def take(name: str, parse: Callable[[str], T], default: T) -> T:
        text = options.get(name)
        try:
            return default if text is None else parse(text.strip())
        except (ValueError, KeyError) as e:
            raise ConfigError(f"option {name}={text!r}: allowed is {OPTIONS[name]}") from e

    topics = take("subscribe", _names, none)
    found = ViewOptions(
        view=plain.view,
        paths=tuple(re.sub(r"^file:(//)?", "", p) for p in take("path", _names, none)),
        now_ms=take("now", _count, now_ms),
        filter=ViewFilter(topics=topics or None),
        topics=topics,
        settings=tuple(sorted(settings.items())),
        estimates=take("estimates", _boolean, plain.estimates),
        logs_per_unit=take("maxLogsPerPartition", _count, plain.logs_per_unit),
        committed=take("kafka.isolation.level", _ISOLATION.__getitem__, plain.committed),
        fail_on_data_loss=take("failOnDataLoss", _boolean, plain.fail_on_data_loss),
        memory_bytes=take("maxMemoryBytes", _count, plain.memory_bytes),
    )
    found.check()
    return found


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("names nothing")
    return names


def _boolean(text: str) -> bool:
    return _BOOLEANS[text.lower()]


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("must not be negative")
    return number
