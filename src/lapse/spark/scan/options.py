"""Options of `format("lapse")`, spelled and defaulted as Spark's Kafka source has them.

Pure: text in, `SourceOptions` out. `OPTIONS` is the whole list; anything else is refused, since a
misspelt option that is ignored gives a wrong answer without a word.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.base.nearest import nearest
from lapse.base.setting import INT_MAX
from lapse.base.times import FOREVER_MS, UNITS_MS
from lapse.records.column_filter import Condition
from lapse.records.column_spec import TYPES, WITH_HEADERS, WITHOUT_HEADERS
from lapse.spark.scan.bounds import (
    EARLIEST,
    FROM_EARLIEST,
    LATEST,
    TO_LATEST,
    Bounds,
    ending_offsets,
    long_of,
    not_negative,
    require_order,
    starting_offsets,
    stream_offsets,
    times_of,
)
from lapse.spark.scan.where import parse_where
from lapse.spark.session.folders import directory

logger = logging.getLogger(__name__)

OPTIONS: Mapping[str, str] = {
    "path": "log directories or partition directories, comma-separated; or, instead of it,",
    "kafka.bootstrap.servers": "HOST:PORT,HOST:PORT… to read from brokers",
    "kafka.*": (
        "settings of Kafka's clients for that: kafka.security.protocol, kafka.ssl.…, …; in "
        "writing kafka.compression.type, kafka.delivery.timeout.ms, kafka.request.timeout.ms, "
        "kafka.max.request.size too"
    ),
    "subscribe": "topics, comma-separated",
    "topic": "the same; in writing: where all records go, whatever their column topic says",
    "subscribePattern": "a regular expression that topics must match as a whole",
    "assign": 'partitions as JSON: {"orders":[0,1]}',
    "startingOffsets": (
        'earliest (a stream\'s default is latest), or JSON: {"orders":{"0":17,"1":-2}} '
        '(-2: earliest; in a stream -1: latest) or {"orders":"earliest"}; new partitions of a '
        "stream: earliest"
    ),
    "endingOffsets": 'latest, or JSON: {"orders":{"0":99,"1":-1}} (-1: latest); exclusive',
    "startingTimestamp": "ms; from the first record of each partition at or after it",
    "endingTimestamp": "ms; up to the first record of each partition at or after it",
    "startingOffsetsByTimestamp": (
        'JSON: {"orders":{"0":1700000000000}}, ms; the same for those partitions; others begin as '
        "startingOffsets says"
    ),
    "endingOffsetsByTimestamp": "JSON, likewise; others end as endingOffsets says",
    "startingOffsetsByTimestampStrategy": (
        "where no record is that young: error (default), or latest, to begin at the end"
    ),
    "maxOffsetsPerTrigger": "of a stream: no more offsets a batch, over all partitions",
    "maxBytesPerTrigger": "of a stream: about so many bytes of segments a batch",
    "minOffsetsPerTrigger": "of a stream: a batch waits for so many offsets, over all partitions",
    "maxTriggerDelay": "of a stream: but no longer than this after the last one (default 15m)",
    "maxRecordsPerPartition": "no more offsets a Spark partition",
    "deleteConsumed": (
        "of a stream from brokers, with startingOffsets=earliest and failOnDataLoss=true: true to "
        "delete what its checkpoint has done (default false)"
    ),
    "deleteConsumedCheckpoint": (
        "the query's own checkpointLocation, where this machine sees it: then what its last batch "
        "read goes at once"
    ),
    "deleteConsumedCheckpoints": "of other queries that must have read too, comma-separated",
    "deleteConsumedGroups": "consumer groups that must have read too, comma-separated",
    "includeHeaders": "true to have the column headers (default false)",
    "columns": "the columns wanted, comma-separated; fewer columns are faster",
    "where": (
        "conditions that all hold of the records wanted, with AND between them: offset >= 17 AND "
        "topic = 'orders' AND key IS NOT NULL; other records are dropped in the task, or not read"
    ),
    "includeControl": "true to have control records too (default false)",
    "kafka.isolation.level": "read_uncommitted (default) or read_committed",
    "failOnDataLoss": "false to go on where requested offsets are gone (default true)",
    "minPartitions": "at least so many Spark partitions, where there are as many offsets",
    "maxPartitionBytes": "bytes of segments a Spark partition (default 128 MiB)",
    "exactlyOnce": (
        "of a stream that is written: false to write a repeated batch again (default true)"
    ),
    "repeatedRows": (
        "of a stream that is written: unchecked where a batch that is repeated may have lost rows "
        "meanwhile, as by compaction (default checked)"
    ),
    "lapse.tombstone.values.enable": (
        "written: true where the topics have it (default false); read: false to have is_tombstone "
        "by null values alone (default true)"
    ),
}
# Options of Spark's Kafka source that say nothing here, and why: taken, with a warning.
WITHOUT_EFFECT: Mapping[str, str] = {
    "groupIdPrefix": "records are read without a consumer group",
    "kafka.group.id": "records are read without a consumer group",
    "kafkaConsumer.pollTimeoutMs": "kafka.default.api.timeout.ms says how long brokers are tried",
    "fetchOffset.numRetries": "kafka.default.api.timeout.ms says how long brokers are tried",
    "fetchOffset.retryIntervalMs": "kafka.default.api.timeout.ms says how long brokers are tried",
}
# Settings of Kafka's clients that Spark's Kafka source refuses, and so does this one.
REFUSED: Mapping[str, str] = {
    "kafka.auto.offset.reset": "startingOffsets says where to begin",
    "kafka.enable.auto.commit": "a query keeps its offsets in its checkpoint",
    "kafka.interceptor.classes": "no class of Java's takes part",
    **dict.fromkeys(
        ("kafka.key.deserializer", "kafka.value.deserializer", "kafka.key.serializer",
         "kafka.value.serializer"),
        "keys and values are bytes: cast them in Spark",
    ),
}  # fmt: skip
IN_WRITING: Mapping[str, str] = {
    "includeHeaders": "headers are written where the rows have a column of that name",
}
WRITE_ONLY = frozenset({"exactlyOnce", "repeatedRows"})
TOMBSTONE_VALUES = "lapse.tombstone.values.enable"
BOOTSTRAP, CLIENT_PREFIX = "kafka.bootstrap.servers", "kafka."
_NEARLY = 0.9
# Settings of Kafka's clients that are heeded; those that are like them are here too.
_OF_CLIENTS = tuple(
    f"{CLIENT_PREFIX}{name}"
    for name in (
        "acks", "bootstrap.servers", "compression.type", "default.api.timeout.ms",
        "delivery.timeout.ms", "isolation.level", "max.request.size", "request.timeout.ms",
        "sasl.jaas.config", "sasl.mechanism", "security.protocol", "security.providers",
        "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.password",
        "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location",
        "ssl.keystore.password", "ssl.keystore.type", "ssl.protocol", "ssl.truststore.certificates",
        "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
        "transaction.timeout.ms",
    )
)  # fmt: skip
_PATH_HELP = "log directories, comma-separated, or HOST:PORT,HOST:PORT…"
_BATCH_ONLY = frozenset({"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"})
_DELETE_MORE = ("deleteConsumedCheckpoint", "deleteConsumedCheckpoints", "deleteConsumedGroups")
_STREAM_ONLY = frozenset(
    {
        "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
        "deleteConsumed", *_DELETE_MORE,
    }
)  # fmt: skip
_BY_LOWER = {name.lower(): name for name in OPTIONS}
_WITHOUT_EFFECT = {name.lower() for name in WITHOUT_EFFECT}
_MAX_PARTITION_BYTES = 128 << 20
_REQUEST_TIMEOUT_MS, _API_TIMEOUT_MS = 30_000, 60_000
_TRIGGER_DELAY_MS = 15 * 60_000
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_DURATIONS_MS = {**UNITS_MS, "min": UNITS_MS["m"], "ms": 1, "": 1}
_LEAST_MOST = ("min", "max")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeletionOptions:
    """That what a query has read is to be deleted, and who else must have read it.

    Attributes:
        checkpoint: the query's own; None where it cannot be read from here.
        checkpoints: of other queries.
        groups: by their ids.
        timeout_ms: for the questions to coordinators, and again for the deletion.
    """

    checkpoint: Path | None = None
    checkpoints: tuple[Path, ...] = ()
    groups: tuple[str, ...] = ()
    timeout_ms: int = _REQUEST_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source.

    Attributes:
        paths: where logs are, if they are read from files.
        bootstrap: the brokers, if logs are read from brokers; one of the two is given.
        client: settings of Kafka's clients, secrets among them.
        topics: exactly these; None: any that `pattern` matches.
        pattern: internal topics (`__…`) are only read when named in full.
        partitions: exactly these; None: all of the topics.
        where: records for which one of these does not hold are left out.
        offsets_max: of a stream, what a batch may have; None is no limit.
        bytes_max: the same in bytes of segments; not both.
        offsets_min: of a stream, what a batch waits for, for `trigger_delay_ms` at most.
        records_max: offsets of one Spark partition; None is no limit.
        deletion: of a stream, whether what it has read is deleted.
        valued_tombstones: what says that it is a tombstone is one; else by null values alone.
        api_timeout_ms: how long a broker that does not answer is tried.
    """

    paths: tuple[Path, ...] = ()
    bootstrap: str = ""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None
    starting: Bounds = FROM_EARLIEST
    ending: Bounds = TO_LATEST
    columns: tuple[str, ...] = WITHOUT_HEADERS
    where: tuple[Condition, ...] = ()
    control: bool = False
    committed: bool = False
    fail_on_data_loss: bool = True
    partitions_min: int = 1
    partition_bytes_max: int = _MAX_PARTITION_BYTES
    valued_tombstones: bool = True
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int = 0
    trigger_delay_ms: int = _TRIGGER_DELAY_MS
    records_max: int | None = None
    deletion: DeletionOptions | None = None
    api_timeout_ms: int = _API_TIMEOUT_MS


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Raises ConfigError naming the option, what it was, and what is allowed."""
    warn_of(given, WITHOUT_EFFECT)
    options = known(given)
    take = Taker(options)
    topics, pattern, partitions = _strategy(options, take)
    _refuse_others(options, _BATCH_ONLY if streaming else _STREAM_ONLY, streaming=streaming)
    ends = replace(
        take("endingOffsets", ending_offsets, TO_LATEST),
        timestamp_ms=take("endingTimestamp", not_negative, None),
        times=take("endingOffsetsByTimestamp", times_of, {}),
    )
    starting = stream_offsets if streaming else starting_offsets
    default = LATEST if streaming else EARLIEST
    begins = replace(
        take("startingOffsets", starting, Bounds(default)),
        timestamp_ms=take("startingTimestamp", not_negative, None),
        times=take("startingOffsetsByTimestamp", times_of, {}),
        needs_record=take("startingOffsetsByTimestampStrategy", _is_error, True),
    )
    require_order(begins, ends)
    offsets_min, offsets_max = (take(f"{m}OffsetsPerTrigger", positive, None) for m in _LEAST_MOST)
    if offsets_min and offsets_max and offsets_min > offsets_max:
        raise ConfigError(
            f"option minOffsetsPerTrigger={offsets_min}: is more than maxOffsetsPerTrigger"
        )
    bytes_max = take("maxBytesPerTrigger", positive, None)
    if bytes_max and offsets_max:
        raise ConfigError(f"option maxBytesPerTrigger={bytes_max}: not with maxOffsetsPerTrigger")
    return SourceOptions(
        paths=_paths(options),
        bootstrap=options.get(BOOTSTRAP, ""),
        client=client_settings(options),
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        starting=begins,
        ending=ends,
        columns=_columns(take),
        where=take("where", parse_where, ()),
        control=take("includeControl", boolean, False),
        committed=take("kafka.isolation.level", isolation, False),
        fail_on_data_loss=take("failOnDataLoss", boolean, True),
        partitions_min=take("minPartitions", positive, 1),
        partition_bytes_max=take("maxPartitionBytes", positive, _MAX_PARTITION_BYTES),
        valued_tombstones=take(TOMBSTONE_VALUES, boolean, True),
        offsets_max=offsets_max,
        bytes_max=bytes_max,
        offsets_min=offsets_min or 0,
        trigger_delay_ms=take("maxTriggerDelay", _duration_ms, _TRIGGER_DELAY_MS),
        records_max=take("maxRecordsPerPartition", positive, None),
        deletion=_deletion(options, take, begins),
        api_timeout_ms=take("kafka.default.api.timeout.ms", positive_int, _API_TIMEOUT_MS),
    )


def _deletion(options: Mapping[str, str], take: Taker, begins: Bounds) -> DeletionOptions | None:
    if not take("deleteConsumed", boolean, False):
        alone = [name for name in _DELETE_MORE if name in options]
        if alone:
            raise ConfigError(f"option {', '.join(alone)}: has a meaning with deleteConsumed=true")
        return None
    if BOOTSTRAP not in options:
        raise ConfigError(f"option deleteConsumed: it is brokers that delete ({BOOTSTRAP})")
    if replace(begins, needs_record=False) != FROM_EARLIEST:
        raise ConfigError(
            "option deleteConsumed: needs startingOffsets=earliest; all that lies before where a "
            "query begins would be deleted unread"
        )
    if not take("failOnDataLoss", boolean, True):
        raise ConfigError(
            "option deleteConsumed: not with failOnDataLoss=false; what a query that goes on has "
            "passed over would be deleted unread"
        )
    return DeletionOptions(
        take("deleteConsumedCheckpoint", directory, None),
        take("deleteConsumedCheckpoints", _directories, ()),
        take("deleteConsumedGroups", names, ()),
        take("kafka.request.timeout.ms", positive_int, _REQUEST_TIMEOUT_MS),
    )


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """The selected columns, of a batch or of a stream; raises ConfigError as `parse_options`."""
    return _columns(Taker(known(given)))


class Taker:
    """Options by name, parsed; what a parser refuses is said of its option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self._options.get(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except (ValueError, TypeError, AttributeError, re.error) as e:
            meaning = OPTIONS.get(name, "a setting of Kafka's clients")
            raise ConfigError(f"option {name}={text!r}: {_in_words(e)} ({meaning})") from e


def _in_words(error: Exception) -> str:
    """What Python says of `int("x")`, or of a list that is a number, says little."""
    if isinstance(error, (TypeError, AttributeError)):
        return "is of another form"
    text = str(error)
    return "is no whole number" if text.startswith("invalid literal for int") else text


def warn_of(given: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """Say of each option without effect why it has none."""
    here = {name.lower() for name in given}
    for name, reason in reasons.items():
        if name.lower() in here:
            logger.warning("option %s has no effect: %s", name, reason)


def known(given: Mapping[str, str]) -> dict[str, str]:
    """Options under the names they have in OPTIONS; raises ConfigError for one that is not."""
    given = {name: text for name, text in given.items() if name.lower() not in _WITHOUT_EFFECT}
    unknown = sorted(
        name for name in given if name.lower() not in _BY_LOWER and not is_of_client(name)
    )
    if unknown:
        raise ConfigError(
            f"unknown option {', '.join(unknown)}: format('lapse') has {', '.join(OPTIONS)}"
        )
    for name in given:
        if name.lower() not in _BY_LOWER:
            _require_setting(name.lower())
    return {_BY_LOWER.get(name.lower(), name.lower()): text for name, text in given.items()}


def _require_setting(name: str) -> None:
    """Clients have many settings that say nothing here; one that nearly does was meant to."""
    if name in REFUSED:
        raise ConfigError(f"option {name} is not supported: {REFUSED[name]}")
    near = nearest(name, _OF_CLIENTS, _NEARLY)
    if near and name != near:
        raise ConfigError(f"unknown option {name}: is {near} meant?")


def is_of_client(name: str) -> bool:
    """Spark does not care for case in options; Kafka's settings have none but small letters."""
    return name.lower().startswith(CLIENT_PREFIX)


def of_clients(options: Mapping[str, str]) -> dict[str, str]:
    """Those of Kafka's clients, without their prefix; raises ConfigError for a misspelt one."""
    found = {name.lower(): text for name, text in options.items() if is_of_client(name)}
    for name in found:
        _require_setting(name)
    return {name.removeprefix(CLIENT_PREFIX): text for name, text in found.items()}


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Those of Kafka's clients that are no options of their own, without their prefix."""
    return of_clients({name: text for name, text in options.items() if name not in OPTIONS})


def _refuse_others(options: Mapping[str, str], others: frozenset[str], *, streaming: bool) -> None:
    of_writing = sorted(WRITE_ONLY & options.keys())
    if of_writing:
        raise ConfigError(f"option {', '.join(of_writing)}: has a meaning in writing alone")
    found = sorted(others & options.keys())
    if found:
        what = "streams do not have" if streaming else "only streams have"
        raise ConfigError(f"option {', '.join(found)}: {what} it")


def _paths(options: Mapping[str, str]) -> tuple[Path, ...]:
    texts = [text.strip() for text in options.get("path", "").split(",")]
    paths = tuple(Path(re.sub(r"^file:(//)?", "", text)) for text in texts if text)
    if bool(paths) == (BOOTSTRAP in options):
        raise ConfigError(
            f"options path and {BOOTSTRAP}: one of the two says where to read from ({_PATH_HELP})"
        )
    return paths


def _strategy(
    options: Mapping[str, str], take: Taker
) -> tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]:
    given = [n for n in ("subscribe", "topic", "subscribePattern", "assign") if n in options]
    if len(given) > 1:
        raise ConfigError(f"options {' and '.join(given)} exclude each other")
    topics = take("subscribe", names, None) or take("topic", names, None)
    return (
        topics,
        take("subscribePattern", _pattern, None),
        take("assign", _assigned, None),
    )


def _columns(take: Taker) -> tuple[str, ...]:
    chosen = take("columns", names, None)
    if chosen is None:
        return WITH_HEADERS if take("includeHeaders", boolean, False) else WITHOUT_HEADERS
    for name in chosen:
        if name not in TYPES:
            raise ConfigError(f"option columns: no column {name!r}: there are {', '.join(TYPES)}")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"option columns={','.join(chosen)!r}: a column is named twice")
    return chosen


# --- parsers: ValueError says what is wrong -------------------------------------------------------


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError("names nothing")
    return found


def _pattern(text: str) -> str:
    if not text:
        raise ValueError("matches no name")
    return re.compile(text).pattern


def _directories(text: str) -> tuple[Path, ...]:
    return tuple(map(directory, names(text)))


def boolean(text: str) -> bool:
    """True or false."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def isolation(text: str) -> bool:
    """Whether only committed records are read."""
    if text not in {"read_committed", "read_uncommitted"}:
        raise ValueError("no isolation level")
    return text == "read_committed"


def positive(text: str) -> int:
    """A number from 1 on."""
    number = long_of(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def positive_int(text: str) -> int:
    """The same in 32 bits, as Kafka's clients have it."""
    number = positive(text)
    if number > INT_MAX:
        raise ValueError(f"must be at most {INT_MAX}")
    return number


def _duration_ms(text: str) -> int:
    """As Spark writes a time: 90s, 15m; a number alone is in milliseconds."""
    found = _DURATION.fullmatch(text.lower())
    if found is None or found[2] not in {*_DURATIONS_MS, "us"}:
        raise ValueError("is no time like 90s or 15m")
    number = int(found[1])
    whole = number // 1000 if found[2] == "us" else number * _DURATIONS_MS[found[2]]
    return min(whole, FOREVER_MS)


def _assigned(text: str) -> tuple[TopicPartition, ...] | None:
    found = json.loads(text)
    return tuple(TopicPartition(topic, int(n)) for topic, ns in found.items() for n in ns)


def _is_error(text: str) -> bool:
    """Spark's strategies; which of the two."""
    if text.lower() not in {"latest", "error"}:
        raise ValueError("neither latest nor error")
    return text.lower() == "error"
