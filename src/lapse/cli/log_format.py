"""How the programs that run for long write their log to standard error: for people, or as JSON.

`lapse.log.format=json` makes each entry one object on one line, for Loki, Elasticsearch and others:

    {"at":"2026-11-29T16:20:01.123Z","level":"info","logger":"lapse.lifecycle.service.board",
     "message":"round … of orders-0 (dirty ratio): …","event":"round","partition":"orders-0",
     "round_id":"20261129T162000.901-5fa1ef"}

`template` is the message before its values were put in: the same for all entries of a kind. Which
partition an entry is of, and the code of an error, are taken from those values; what an entry says
beyond that (`extra`) has a field each. Java writes its own lines, as text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from lapse.base.errors import KafkaError
from lapse.base.ids import TopicPartition
from lapse.base.readable import readable_text
from lapse.base.scheduling import SERVING

TEXT, JSON = "text", "json"
SETTING = "lapse.log.format"
# What each entry has; the rest of its attributes is `extra`.
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logs(form: str) -> None:
    """Once, before anything is logged; where others have set it up already, nothing changes."""
    if form == JSON:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        return
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines("%(asctime)s %(levelname)s %(name)s: %(broker)s%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class TextLines(logging.Formatter):
    """An entry for people; it begins with the broker that it is of, where there are several.

    It is one line, whatever clients call themselves; only a traceback has more.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.broker = f"{broker}: " if (broker := _broker_of(record)) else ""
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        record.message = readable_text(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """An entry as one line of JSON, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.args:
            entry["template"] = str(record.msg)
            entry |= _found_in(_values(record.args))
        if broker := _broker_of(record):
            entry["broker"] = broker
        entry |= {k: _plain(v) for k, v in vars(record).items() if k not in _ORDINARY}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # An unpaired surrogate stands for a byte of a path that is no UTF-8.
        return msgspec.json.encode(_encodable(entry)).decode()


def _broker_of(record: logging.LogRecord) -> str:
    """By the name of the thread that logged it."""
    name = record.threadName or ""
    return name.removeprefix(SERVING) if name.startswith(SERVING) else ""


def _values(args: object) -> Iterator[object]:
    if isinstance(args, dict):
        yield from args.values()
    elif isinstance(args, Iterable):
        yield from args


def _found_in(values: Iterator[object]) -> dict[str, str]:
    """The first partition, and the first error's code or kind."""
    found: dict[str, str] = {}
    for value in values:
        if isinstance(value, TopicPartition):
            found.setdefault("partition", str(value))
        elif isinstance(value, KafkaError):
            found.setdefault("error", value.code.name)
        elif isinstance(value, BaseException):
            found.setdefault("error", type(value).__name__)
    return found


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _encodable(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
        for name, value in entry.items()
    }
