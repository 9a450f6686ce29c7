"""The options of a view as text, as a Spark reader has them, to `ViewOptions`.

Topic and broker settings are options by Kafka's names (`cleanup.policy`). Names do not care for
case, as all options of Spark. What is unknown is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from lapse.base.config import LONG_MAX, split_settings
from lapse.base.errors import ConfigError
from lapse.spark.scan.bounds import not_negative
from lapse.spark.scan.options import (
    boolean,
    is_of_client,
    isolation,
    names,
    of_clients,
)
from lapse.spark.views.spec import ViewOptions

OPTIONS: Mapping[str, str] = {
    "view": "segments, plan, ledger or keys",
    "path": "log directories or partition directories, comma-separated; or, instead of it,",
    "kafka.bootstrap.servers": "HOST:PORT,HOST:PORT…: all brokers say what they have",
    "kafka.*": "settings of Kafka's clients for that, as for records",
    "subscribe": "topics, comma-separated (default: all)",
    "now": "ms; judge as of this moment (default: when the query is planned)",
    "estimates": "true: fill rows without reading segments, as far as that goes (default false)",
    "maxLogsPerPartition": "at most so many logs a Spark partition (default 64)",
    "maxMemoryBytes": "what the keys of a task may take (default 256 MiB)",
    "kafka.isolation.level": "keys: read_uncommitted (default) or read_committed",
    "failOnDataLoss": (
        "false to go on where records vanish while keys are read, or without brokers that are away "
        "(default true)"
    ),
}
_BY_LOWER = {name.lower(): name for name in OPTIONS}

T = TypeVar("T")


def parse_view_options(given: Mapping[str, str], now_ms: int) -> ViewOptions:
    """The options of a view; `now_ms` unless they name another time.

    Raises ConfigError naming the option, what it was, and what is allowed.
    """
    if any(name.lower() == "where" for name in given):
        raise ConfigError(
            "option where: is of records, and a view has none; subscribe names topics, path may be "
            "a partition's directory, and Spark filters the rows (DataFrame.where)"
        )
    options = {_BY_LOWER[name.lower()]: t for name, t in given.items() if name.lower() in _BY_LOWER}
    others = {name: text for name, text in given.items() if name.lower() not in _BY_LOWER}
    client = of_clients(others)
    settings = {name: text for name, text in others.items() if not is_of_client(name)}
    split_settings(settings)  # raises on what is neither an option nor a setting
    plain = ViewOptions(options.get("view", ""), (), now_ms)
    none: tuple[str, ...] = ()

    def take(name: str, parse: Callable[[str], T], default: T) -> T:
        text = options.get(name)
        try:
            return default if text is None else parse(text.strip())
        except ValueError as e:
            raise ConfigError(f"option {name}={text!r}: allowed is {OPTIONS[name]}") from e

    found = ViewOptions(
        view=plain.view,
        paths=tuple(re.sub(r"^file:(//)?", "", p) for p in take("path", names, none)),
        now_ms=take("now", _moment, now_ms),
        topics=take("subscribe", names, none),
        settings=tuple(sorted(settings.items())),
        estimates=take("estimates", boolean, plain.estimates),
        logs_per_unit=take("maxLogsPerPartition", not_negative, plain.logs_per_unit),
        committed=take("kafka.isolation.level", isolation, plain.committed),
        fail_on_data_loss=take("failOnDataLoss", boolean, plain.fail_on_data_loss),
        memory_bytes=take("maxMemoryBytes", not_negative, plain.memory_bytes),
        bootstrap=take("kafka.bootstrap.servers", str, ""),
        client=tuple(sorted(client.items())),
    )
    found.check()
    return found


def _moment(text: str) -> int:
    """Milliseconds that a request has room for."""
    number = not_negative(text)
    if number > LONG_MAX:
        raise ValueError("is beyond all times")
    return number
