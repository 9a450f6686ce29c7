"""Every setting in one table: name, type, default, what is allowed, synonyms, what it is for.

What Kafka calls KafkaConfig and LogConfig.

Topic settings have Kafka's topic names and their broker synonyms (C-1); broker settings
have the names of `server.properties`; our own carry a `lapse.` prefix. Defaults and limits are
Kafka 4.3's (C-2 … C-7). Docs and help are made from the table, so it is the documentation.

A value arrives as text from a file, a command line or a client, and leaves as a Python value in a
frozen `TopicConfig` or `BrokerConfig`; anything unknown or out of range raises `ConfigError` (a
client gets INVALID_CONFIG). A password leaves as a `Secret`, and is in no message.

Which broker settings may be changed while a broker runs is decided by `is_dynamic`; how those lie
over the file's is `metadata.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lapse.base.contradictions import Contradiction, settle
from lapse.base.coordination_settings import COORDINATION_SETTINGS
from lapse.base.errors import ConfigError
from lapse.base.lifecycle_settings import LIFECYCLE_SETTINGS
from lapse.base.nearest import meant_or_known
from lapse.base.replication_settings import REPLICATION_SETTINGS, THROTTLE_SETTINGS
from lapse.base.secret import HIDDEN
from lapse.base.security_settings import SECURITY_SETTINGS, SecurityConfig
from lapse.base.setting import (
    BOOLEAN,
    MESSAGE_FORMAT,
    MILLISECONDS,
    POLICY,
    RATE,
    RATIO,
    TEXT,
    TIMESTAMP_TYPE,
    Setting,
    one_of,
    whole,
)
from lapse.base.setting import INT_MAX as INT_MAX  # noqa: PLC0414
from lapse.base.setting import LONG_MAX as LONG_MAX  # noqa: PLC0414
from lapse.base.zookeeper_settings import ZOOKEEPER_SETTINGS, ZooKeeperConfig

OLD_BELOW = 2  # message formats below v2
DAY_MS = 86_400_000
SEGMENT_BYTES_MIN = 1 << 20  # KIP-1030

TOPIC_SETTINGS: tuple[Setting, ...] = (
    Setting("cleanup.policy", POLICY, "delete",
            "What happens to old records: compact keeps the last of each key, delete expires by "
            "age and size; both may be named, and the empty list keeps everything. Compact is not "
            "given or taken while a log holds flagged tombstones (KIP-87).",
            (("log.cleanup.policy", 1),)),
    Setting("compression.type",
            one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), "producer",
            "Codec of batches on disk; producer keeps what was sent.", (("compression.type", 1),)),
    Setting("delete.retention.ms", MILLISECONDS, str(DAY_MS),
            "How long a tombstone stays readable after its key's values are gone (KIP-534).",
            (("log.cleaner.delete.retention.ms", 1),)),
    Setting("file.delete.delay.ms", MILLISECONDS, "60000",
            "How long a removed segment file stays, renamed .deleted, for readers that hold it.",
            (("log.segment.delete.delay.ms", 1),)),
    Setting("index.interval.bytes", whole(0, INT_MAX), "4096",
            "Bytes of log between two entries of the offset and time index.",
            (("log.index.interval.bytes", 1),)),
    Setting("max.compaction.lag.ms", whole(1), str(LONG_MAX),
            "The longest a record may wait before compaction looks at it (KIP-354).",
            (("log.cleaner.max.compaction.lag.ms", 1),)),
    Setting("max.message.bytes", whole(0, INT_MAX), "1048588",
            "The largest batch accepted.", (("message.max.bytes", 1),)),
    Setting("message.format.version", MESSAGE_FORMAT, "3.0-IV1",
            "The Kafka version whose record format is written: before 0.10 format v0, before 0.11 "
            "v1 (with timestamps, KIP-32), else v2. Any format is read.",
            (("log.message.format.version", 1),)),
    Setting("message.timestamp.after.max.ms", MILLISECONDS, "3600000",
            "How far ahead of the broker's clock a record's create time may be.",
            (("log.message.timestamp.after.max.ms", 1),)),
    Setting("message.timestamp.before.max.ms", MILLISECONDS, str(LONG_MAX),
            "How far behind the broker's clock a record's create time may be.",
            (("log.message.timestamp.before.max.ms", 1),)),
    Setting("message.timestamp.difference.max.ms", whole(-1), "-1",
            "KIP-32's older name for both bounds: it stands in for the one, or the two, of "
            "before.max.ms and after.max.ms that are not set; -1 is unset.",
            (("log.message.timestamp.difference.max.ms", 1),)),
    Setting("message.timestamp.type", TIMESTAMP_TYPE, "CreateTime",
            "Whose clock a record's timestamp is: CreateTime or LogAppendTime (KIP-32).",
            (("log.message.timestamp.type", 1),)),
    Setting("min.cleanable.dirty.ratio", RATIO, "0.5",
            "Compaction waits until more than this part of the log is dirty.",
            (("log.cleaner.min.cleanable.ratio", 1),)),
    Setting("min.compaction.lag.ms", MILLISECONDS, "0",
            "The shortest time a record stays untouched by compaction.",
            (("log.cleaner.min.compaction.lag.ms", 1),)),
    Setting("min.insync.replicas", whole(1, INT_MAX), "1",
            "In-sync replicas that acks=all requires: with fewer such a Produce is refused.",
            (("min.insync.replicas", 1),)),
    Setting("retention.bytes", whole(-1), "-1",
            "With delete: the oldest segments go while the log is larger; -1 is no limit.",
            (("log.retention.bytes", 1),)),
    Setting("retention.ms", whole(-1), str(7 * DAY_MS),
            "With delete: segments older than this go; -1 is no limit; 0 is a topic's own only.",
            (("log.retention.ms", 1), ("log.retention.minutes", 60_000),
             ("log.retention.hours", 3_600_000)), zero_for_all=False),
    Setting("segment.bytes", whole(SEGMENT_BYTES_MIN, INT_MAX), str(1 << 30),
            "A segment is closed before it grows past this, up to 1/32 of it earlier.",
            (("log.segment.bytes", 1),)),
    Setting("segment.index.bytes", whole(4, INT_MAX), str(10 << 20),
            "A segment is closed when an index reaches this.",
            (("log.index.size.max.bytes", 1),)),
    Setting("segment.jitter.ms", MILLISECONDS, "0",
            "Spread of segment.ms; never more than the age limit in force.",
            (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000))),
    Setting("segment.ms", whole(1), str(7 * DAY_MS),
            "A segment is closed when it has been written to for this long.",
            (("log.roll.ms", 1), ("log.roll.hours", 3_600_000))),
    Setting("lapse.physical.delete.max.lag.ms", MILLISECONDS, str(DAY_MS),
            "The longest a record below the log start (KIP-107) may still be found in a file; "
            "file.delete.delay.ms counts in it.",
            (("lapse.physical.delete.max.lag.ms", 1),)),
    Setting("lapse.roll.time", one_of("clock", "record"), "clock",
            "What segment.ms and max.compaction.lag.ms count from when a segment is closed: its "
            "first append by the broker's clock, or its first record's timestamp (KIP-32's rule, "
            "looked at when something is appended).",
            (("lapse.roll.time", 1),)),
    Setting("lapse.tombstone.removal.max.lag.ms", whole(-1), "-1",
            "The longest an expired tombstone waits for its removal round; "
            "-1 stands for delete.retention.ms.",
            (("lapse.tombstone.removal.max.lag.ms", 1),)),
    Setting("lapse.tombstone.values.enable", BOOLEAN, "false",
            "Whether a tombstone that is produced to a compacted topic keeps its value (KIP-87). "
            "Without it null is stored instead. What is stored stays a tombstone, whatever this "
            "says.",
            (("lapse.tombstone.values.enable", 1),)),
    *THROTTLE_SETTINGS,
)  # fmt: skip

BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting("node.id", whole(0, INT_MAX), "0", "Number of this broker."),
    Setting("log.dirs", TEXT, "", "Directories that hold the logs, separated by commas."),
    Setting("zookeeper.connect", TEXT, "",
            "The ZooKeeper (3.8 or newer) that keeps topics, settings and users: "
            "HOST:PORT,HOST:PORT/PATH. Empty: they are in a file beside the logs."),
    Setting("zookeeper.session.timeout.ms", whole(1, INT_MAX), "18000",
            "After how long without a sign of life ZooKeeper takes the broker for dead."),
    Setting("zookeeper.connection.timeout.ms", whole(0, INT_MAX), "0",
            "How long one waits for ZooKeeper's answer; 0: as long as a session lasts."),
    *ZOOKEEPER_SETTINGS,
    Setting("listeners", TEXT, "PLAINTEXT://127.0.0.1:9092",
            "Where clients connect; port 0 picks a free one."),
    Setting("advertised.listeners", TEXT, "",
            "The addresses that clients connect to, as NAME://HOST:PORT by listener; nothing: what "
            "listeners says."),
    Setting("lapse.http.port", whole(-1, 65535), "9093",
            "Port of dashboard, health, metrics, on the listener's host; 0: a free one, -1: none."),
    Setting("lapse.log.format", one_of("text", "json"), "text",
            "How broker and lifecycle service write their log: lines for people, or an object a "
            "line."),
    Setting("lapse.fast.requests", BOOLEAN, "true",
            "Whether plain requests are answered in few steps; false: to find a fault there."),
    Setting("num.partitions", whole(1, INT_MAX), "1", "Partitions of a topic that names none."),
    Setting("auto.create.topics.enable", BOOLEAN, "true",
            "Whether asking for an unknown topic creates it; the request must say so, as "
            "producers do."),
    Setting("socket.request.max.bytes", whole(1, INT_MAX), str(100 << 20),
            "The largest request accepted; a larger one ends its connection."),
    Setting("fetch.max.bytes", whole(1024, INT_MAX), str(55 << 20),
            "The most that one Fetch may return, however much it requests."),
    Setting("max.incremental.fetch.session.cache.slots", whole(0, INT_MAX), "1000",
            "Fetch sessions that are kept (KIP-227); 0 is none, then every fetch is a full one."),
    Setting("min.incremental.fetch.session.eviction.ms", MILLISECONDS, "120000",
            "How long a fetch session is unused before any other may take its place."),
    Setting("max.connections.per.ip", whole(0, INT_MAX), str(INT_MAX),
            "Connections that one address may have; one more is closed at once."),
    Setting("max.connections.per.ip.overrides", TEXT, "",
            "Other limits for some addresses: 127.0.0.1:200,::1:50. Names of hosts are not looked "
            "up."),
    Setting("max.connections", whole(0, INT_MAX), str(INT_MAX),
            "Connections that there may be in all; one more is closed at once."),
    Setting("max.connection.creation.rate", whole(0, INT_MAX), str(INT_MAX),
            "Connections a second that are accepted (KIP-612); others wait. Of one listener with "
            "listener.name.NAME. in front.", dynamic=True),
    Setting("queued.max.request.bytes", whole(-1), "-1",
            "Bytes of requests that may be on their way or wait; beyond it large ones are not read "
            "on until there is room. Those of which a part has come may hold 64 MiB of it. -1: an "
            "eighth of the memory that the broker may use."),
    Setting("lapse.queued.max.response.bytes", whole(-1), "-1",
            "Bytes of answers in memory that clients have yet to read; beyond it the slowest "
            "client is disconnected. What is sent right from a file does not count. -1: an "
            "eighth of the memory that the broker may use."),
    Setting("connections.max.idle.ms", whole(-1), "600000",
            "How long a client may be silent, with no request in work, until its connection is "
            "closed; -1: for ever."),
    Setting("log.cleaner.enable", BOOLEAN, "true", "Whether the lifecycle service runs rounds."),
    Setting("log.cleaner.backoff.ms", MILLISECONDS, "15000",
            "Pause of the lifecycle service when nothing was due."),
    Setting("log.cleaner.dedupe.buffer.size", whole(1), str(128 << 20),
            "Memory of one round's offset map under --kafka-exact (24 bytes a key)."),
    Setting("log.cleaner.io.buffer.load.factor", RATIO, "0.9",
            "How full that map may get."),
    Setting("log.cleaner.io.max.bytes.per.second", RATE, "1.7976931348623157E308",
            "Bytes a second that all rounds together may read and write."),
    Setting("log.flush.offset.checkpoint.interval.ms", whole(1), "60000",
            "How often recovery points are written."),
    Setting("log.flush.start.offset.checkpoint.interval.ms", whole(0, INT_MAX), "60000",
            "How often Kafka's checkpoint of log starts is written; each log's own is on disk "
            "before DeleteRecords is answered."),
    Setting("log.retention.check.interval.ms", whole(1), "300000",
            "How often retention looks for old segments."),
    Setting("producer.id.expiration.ms", whole(1), str(DAY_MS),
            "How long an idle producer's sequence numbers are remembered."),
    Setting("quota.window.num", whole(2, 1000), "11",
            "Windows that a client's rate is counted over."),
    Setting("quota.window.size.seconds", whole(1, 3600), "1",
            "How long such a window is."),
    Setting("controller.quota.window.num", whole(1, INT_MAX), "11",
            "Windows whose worth of partitions a client may create or delete at once (KIP-599)."),
    Setting("controller.quota.window.size.seconds", whole(1, INT_MAX), "1",
            "How long such a window is."),
    Setting("lapse.clock.jump.max.ms", MILLISECONDS, "3600000",
            "How far the wall clock may run ahead of the last recorded moment and the monotonic "
            "time since; beyond it nothing is cleaned or expires until it is confirmed. A "
            "LogAppendTime is followed no further ahead of the clock than that either."),
    Setting("lapse.housekeeping.interval.ms", whole(1), "1000",
            "How often the broker looks for segments to roll and files to unlink."),
    *LIFECYCLE_SETTINGS,
    *REPLICATION_SETTINGS,
    *COORDINATION_SETTINGS,
    *SECURITY_SETTINGS,
)  # fmt: skip

# Kafka's back door for tests: like segment.bytes, without its floor of 1 MiB (KIP-1030).
TINY_SEGMENTS = Setting(
    "internal.segment.bytes", whole(1, INT_MAX), "", "segment.bytes below 1 MiB, for tests."
)

_TOPIC = {s.name: s for s in TOPIC_SETTINGS}
_TIMESTAMP_BOUNDS = tuple(_TOPIC[f"message.timestamp.{b}.max.ms"] for b in ("before", "after"))
_BROKER = {s.name: s for s in BROKER_SETTINGS}
_APART = {s.field for s in (*SECURITY_SETTINGS, *ZOOKEEPER_SETTINGS)}
_SYNONYMS = {name: (s, factor) for s in TOPIC_SETTINGS for name, factor in s.synonyms}
_OF_LISTENER = re.compile(r"listener\.name\.(.+)\.(max\.connection\.creation\.rate)")
ALIASES = {"log.dir": "log.dirs", "broker.id": "node.id"}
# Kafka's rule: of synonyms only the first, and no format that other brokers might not know.
_DYNAMIC = {s.synonyms[0][0] for s in TOPIC_SETTINGS if s.synonyms} - {"log.message.format.version"}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings in force for one topic.

    Attributes:
        message_format_version: the magic byte of what is written: 0, 1 or 2.
    """

    cleanup_policy: frozenset[str]
    compression_type: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    follower_replication_throttled_replicas: frozenset[str]
    index_interval_bytes: int
    leader_replication_throttled_replicas: frozenset[str]
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_format_version: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_difference_max_ms: int
    message_timestamp_type: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    physical_delete_max_lag_ms: int
    retention_bytes: int
    retention_ms: int
    roll_time: str
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    tombstone_removal_max_lag_ms: int
    tombstone_values_enable: bool

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def keeps_old_formats(self) -> bool:
        """KIP-32: whether there are readers that know no format but v0, or v0 and v1."""
        return self.message_format_version < OLD_BELOW

    @property
    def removal_lag_ms(self) -> int:
        """L4: how long after its horizon a tombstone may still be there."""
        own = self.tombstone_removal_max_lag_ms
        return self.delete_retention_ms if own < 0 else own


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker and its lifecycle service.

    Attributes:
        security: listeners' protocols, TLS, SASL and authorization.
        zookeeper: how it gets into ZooKeeper, and who else may.
        defaults: broker-wide values of topic settings, by their broker names, as text.
        given: which of the broker's own settings were set, and as what text; no password's.
    """

    node_id: int
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int
    log_dirs: str
    listeners: str
    advertised_listeners: str
    http_port: int
    log_format: str
    fast_requests: bool
    num_partitions: int
    auto_create_topics_enable: bool
    socket_request_max_bytes: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    min_incremental_fetch_session_eviction_ms: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_connections: int
    max_connection_creation_rate: int
    queued_max_request_bytes: int
    queued_max_response_bytes: int
    connections_max_idle_ms: int
    log_cleaner_enable: bool
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    producer_id_expiration_ms: int
    inter_broker_protocol_version: int
    inter_broker_listener_name: str
    security_inter_broker_protocol: str
    sasl_mechanism_inter_broker_protocol: str
    broker_rack: str
    replica_selector_class: str
    default_replication_factor: int
    offsets_topic_replication_factor: int
    transaction_state_log_replication_factor: int
    transaction_state_log_min_isr: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    replica_lag_time_max_ms: int
    replica_absence_max_ms: int
    replica_fetch_wait_max_ms: int
    replica_socket_timeout_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    replica_alter_log_dirs_io_max_bytes_per_second: int
    alter_log_dirs_replication_quota_window_num: int
    alter_log_dirs_replication_quota_window_size_seconds: int
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offset_metadata_max_bytes: int
    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    transaction_state_log_num_partitions: int
    transaction_state_log_segment_bytes: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_partition_verification_enable: bool
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_consumer_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_assignment_interval_ms: int
    group_consumer_regex_refresh_interval_ms: int
    group_consumer_migration_policy: str
    clock_jump_max_ms: int
    housekeeping_interval_ms: int
    lifecycle_master: str
    lifecycle_memory_bytes: int
    lifecycle_cores_max: int
    lifecycle_idle_ms: int
    lifecycle_nice: int
    lifecycle_remote_enable: bool
    erase_orders_dir: str
    security: SecurityConfig
    zookeeper: ZooKeeperConfig
    defaults: tuple[tuple[str, str], ...]
    given: tuple[tuple[str, str], ...]


def _value(setting: Setting, name: str, text: str) -> Any:
    try:
        return setting.parse_as(name, text.strip())
    except ValueError as e:
        shown = HIDDEN if setting.is_sensitive else text
        raise ConfigError(f"{name}={shown}: allowed is {e}") from None


def _unknown(name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"unknown setting {name}{meant_or_known(name, known)}")


def topic_config(
    overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> TopicConfig:
    """Settings of a topic: its own, else the broker's synonyms in `defaults`, else Kafka's.

    Raises ConfigError, also where they contradict each other.
    """
    config, found = settled_config(overrides, defaults)
    if found:
        raise ConfigError(found[0].text)
    return config


def settled_config(
    overrides: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    caps: Mapping[str, int] | None = None,
) -> tuple[TopicConfig, tuple[Contradiction, ...]]:
    """The same, with contradictions settled and logged; raises ConfigError for a bad value.

    `caps`: the most that fields may be, where a cluster's levels allow no more.
    """
    for name in overrides:
        if name not in _TOPIC and name != TINY_SEGMENTS.name:
            raise _unknown(name, _TOPIC)
    values = {s.field: _effective(s, overrides, defaults or {}) for s in TOPIC_SETTINGS}
    if TINY_SEGMENTS.name in overrides:
        text = overrides[TINY_SEGMENTS.name]
        values["segment_bytes"] = _value(TINY_SEGMENTS, TINY_SEGMENTS.name, text)
    difference_ms = values["message_timestamp_difference_max_ms"]
    for bound in _TIMESTAMP_BOUNDS:
        if difference_ms >= 0 and not _is_set(bound, overrides, defaults or {}):
            values[bound.field] = difference_ms
    for name, most in (caps or {}).items():
        values[name] = type(values[name])(min(values[name], most))
    found = settle(values, overrides)
    return TopicConfig(**values), found


def _is_set(s: Setting, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> bool:
    return s.name in overrides or any(name in defaults for name, _ in s.synonyms)


def _effective(s: Setting, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> Any:
    if s.name in overrides:
        return _value(s, s.name, overrides[s.name])
    for name, _ in s.synonyms:
        if name in defaults:
            return _value(s, name, defaults[name])
    return _value(s, s.name, s.default)


def broker_config(properties: Mapping[str, str]) -> BrokerConfig:
    """Settings of a broker from `server.properties`.

    Names that belong to Kafka but not (yet) to Lapse are not an error: the file is read as is.
    Names under `lapse.` must be known.
    """
    for name in properties:
        if name.startswith("lapse.") and name not in _BROKER and name not in _SYNONYMS:
            raise _unknown(name, (*_BROKER, *_SYNONYMS))
    properties = dict(properties)
    for alias, name in ALIASES.items():
        if alias in properties:
            properties.setdefault(name, properties[alias])
    values = {
        s.field: _value(s, s.name, properties.get(s.name, s.default)) for s in BROKER_SETTINGS
    }
    defaults = {name: text for name, text in properties.items() if name in _SYNONYMS}
    topic_config({}, defaults)  # a bad default is the broker's error, not some topic's
    given = {
        s.name: HIDDEN if s.is_sensitive else properties[s.name]
        for s in BROKER_SETTINGS
        if s.name in properties
    }
    for name in filter(of_listener, properties):
        check_broker_value(name, properties[name])
        given[name] = properties[name]
    security = SecurityConfig.of(values, properties)
    own = {name: value for name, value in values.items() if name not in _APART}
    return BrokerConfig(
        **own,
        security=security,
        zookeeper=ZooKeeperConfig.of(values),
        defaults=tuple(sorted(defaults.items())),
        given=tuple(given.items()),
    )


def broker_setting(name: str) -> Setting:
    """The row of a broker setting, a topic setting's under any of its broker names.

    Raises ConfigError where there is none.
    """
    if name in _BROKER:
        return _BROKER[name]
    if name in _SYNONYMS:
        return _SYNONYMS[name][0]
    if found := of_listener(name):
        return replace(_BROKER[found[1]], name=name)
    raise _unknown(name, (*_BROKER, *_SYNONYMS))


def of_listener(name: str) -> tuple[str, str] | None:
    """(listener in lower case, setting) if a setting of the broker is given for one listener."""
    found = _OF_LISTENER.fullmatch(name)
    return None if found is None else (found[1].lower(), found[2])


def check_broker_value(name: str, text: str) -> None:
    """Raise ConfigError unless a broker setting may have this value."""
    _value(broker_setting(name), name, text)


def topic_setting(name: str) -> Setting:
    """The row of a topic setting; raises ConfigError where there is none."""
    if name == TINY_SEGMENTS.name:
        return TINY_SEGMENTS
    if name not in _TOPIC:
        raise _unknown(name, _TOPIC)
    return _TOPIC[name]


def is_dynamic(name: str) -> bool:
    """Whether a broker setting may be changed while a broker runs."""
    found = of_listener(name)
    name = name if found is None else found[1]
    return name in _DYNAMIC or (name in _BROKER and _BROKER[name].dynamic)


def overlaid(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """Broker settings of two sources of which `above` wins, also over other names of its own."""
    hidden = {
        other for name in above if name in _SYNONYMS for other, _ in _SYNONYMS[name][0].synonyms
    }
    hidden |= {n for pair in ALIASES.items() if not above.keys().isdisjoint(pair) for n in pair}
    return {name: text for name, text in below.items() if name not in hidden} | dict(above)


def known_topic_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of a real Kafka's topic settings that Lapse has too; others do not concern it."""
    ours = {*_TOPIC, TINY_SEGMENTS.name}
    return {name: text for name, text in settings.items() if name in ours}


def split_settings(pairs: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Sort `-c key=value` pairs of a tool into (topic overrides, broker settings)."""
    topic: dict[str, str] = {}
    broker: dict[str, str] = {}
    for name, text in pairs.items():
        if name in _TOPIC or name == TINY_SEGMENTS.name:
            topic[name] = text
        elif name in _BROKER or name in _SYNONYMS:
            broker[name] = text
        else:
            raise _unknown(name, (*_TOPIC, *_BROKER, *_SYNONYMS))
    return topic, broker


assert {s.field for s in TOPIC_SETTINGS} == {f.name for f in fields(TopicConfig)}
assert {s.field for s in BROKER_SETTINGS} - _APART | {
    "security", "zookeeper", "defaults", "given",
} == {f.name for f in fields(BrokerConfig)}  # fmt: skip
