"""Options of `format("lapse")` where rows are written; their meaning: `options.OPTIONS`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lapse.base.errors import ConfigError
from lapse.records.layout import Codec
from lapse.spark.scan.options import (
    BOOTSTRAP,
    CLIENT_PREFIX,
    IN_WRITING,
    TOMBSTONE_VALUES,
    WITHOUT_EFFECT,
    WRITE_ONLY,
    Taker,
    boolean,
    client_settings,
    is_of_client,
    known,
    positive_int,
    warn_of,
)

_OF_QUERY = re.compile(r"checkpointlocation$|queryname$|asyncprogresstracking", re.IGNORECASE)
_WRITE = frozenset({"topic", TOMBSTONE_VALUES}) | WRITE_ONLY
_PRODUCER_NUMBERS = ("delivery.timeout.ms", "request.timeout.ms", "max.request.size")
# The most that brokers allow unless told otherwise (transaction.max.timeout.ms): a transaction is
# as long as a task.
_TRANSACTION_TIMEOUT_MS = 900_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows are written to, and how.

    Attributes:
        bootstrap, client: as in `SourceOptions`.
        topic: where all rows go; None: each says so itself.
        codec: a name of `compression.type`.
        producer: other settings of a producer that are given, by Kafka's names.
        valued_tombstones: the topics have `lapse.tombstone.values.enable`.
        exactly_once: a stream's batch that is repeated writes only what is not there yet.
        rows_checked: and what is there must be of the same rows.
    """

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    topic: str | None = None
    codec: Codec = Codec.NONE
    producer: Mapping[str, int] = field(default_factory=dict)
    valued_tombstones: bool = False
    exactly_once: bool = False
    rows_checked: bool = True
    transaction_timeout_ms: int = _TRANSACTION_TIMEOUT_MS


def parse_write_options(
    given: Mapping[str, str], *, overwrite: bool, streaming: bool = False
) -> WriteOptions:
    """Raises ConfigError as `parse_options`; a stream's sink gets the query's options too."""
    if overwrite:
        raise ConfigError("a log is only appended to: mode append")
    if streaming:
        given = {name: text for name, text in given.items() if not _OF_QUERY.match(name)}
    warn_of(given, {**WITHOUT_EFFECT, **IN_WRITING})
    of_writing = {name.lower() for name in IN_WRITING}
    options = known({n: text for n, text in given.items() if n.lower() not in of_writing})
    take = Taker(options)
    if "path" in options or BOOTSTRAP not in options:
        raise ConfigError(f"rows are written to brokers: option {BOOTSTRAP}, and no path")
    strange = sorted(n for n in options if not is_of_client(n) and n not in _WRITE)
    if strange:
        raise ConfigError(f"option {', '.join(strange)}: has no meaning in writing")
    only = sorted(WRITE_ONLY & options.keys())
    if only and not streaming:
        raise ConfigError(
            f"option {', '.join(only)}: a batch job writes at least once, a stream "
            "may write exactly once"
        )
    if options.get("kafka.acks", "all") not in {"all", "-1"}:
        raise ConfigError(f"option kafka.acks={options['kafka.acks']!r}: allowed is all")
    numbers = {name: take(f"{CLIENT_PREFIX}{name}", positive_int, 0) for name in _PRODUCER_NUMBERS}
    return WriteOptions(
        bootstrap=options[BOOTSTRAP],
        client=client_settings(options),
        topic=take("topic", str, None),
        codec=take("kafka.compression.type", _codec, Codec.NONE),
        producer={name: number for name, number in numbers.items() if number},
        valued_tombstones=take(TOMBSTONE_VALUES, boolean, False),
        exactly_once=streaming and take("exactlyOnce", boolean, True),
        rows_checked=take("repeatedRows", _is_checked, True),
        transaction_timeout_ms=take(
            "kafka.transaction.timeout.ms", positive_int, _TRANSACTION_TIMEOUT_MS
        ),
    )


def _codec(text: str) -> Codec:
    found = {codec.name.lower(): codec for codec in Codec}.get(text)
    if found is None:
        raise ValueError(f"none of {', '.join(codec.name.lower() for codec in Codec)}")
    return found


def _is_checked(text: str) -> bool:
    if text.lower() not in {"checked", "unchecked"}:
        raise ValueError("neither checked nor unchecked")
    return text.lower() == "checked"
