"""Every setting: default, limits, synonyms, and errors that name it (C-1 … C-7)."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base import config as config_module
from lapse.base.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    TopicConfig,
    broker_config,
    broker_setting,
    check_broker_value,
    is_dynamic,
    of_listener,
    overlaid,
    split_settings,
    topic_config,
    topic_setting,
)
from lapse.base.errors import ConfigError
from lapse.base.properties import read_properties
from lapse.base.replication_settings import RACK_AWARE
from lapse.base.secret import HIDDEN, Secret
from lapse.base.security_settings import SECURITY_SETTINGS
from lapse.base.setting import PASSWORD, Form, Kind
from lapse.base.zookeeper_settings import ZOOKEEPER_SETTINGS

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
DAY = 86_400_000

# name: (default, greatest bad value below, least, greatest, least bad value above)
TOPIC_NUMBERS = {
    "delete.retention.ms": (DAY, -1, 0, LONG_MAX, LONG_MAX + 1),
    "file.delete.delay.ms": (60_000, -1, 0, LONG_MAX, LONG_MAX + 1),
    "index.interval.bytes": (4096, -1, 0, INT_MAX, INT_MAX + 1),
    "max.compaction.lag.ms": (LONG_MAX, 0, 1, LONG_MAX, LONG_MAX + 1),
    "max.message.bytes": (1_048_588, -1, 0, INT_MAX, INT_MAX + 1),
    "message.timestamp.after.max.ms": (3_600_000, -1, 0, LONG_MAX, LONG_MAX + 1),
    "message.timestamp.difference.max.ms": (-1, -2, -1, LONG_MAX, LONG_MAX + 1),
    "message.timestamp.before.max.ms": (LONG_MAX, -1, 0, LONG_MAX, LONG_MAX + 1),
    "min.cleanable.dirty.ratio": (0.5, -0.01, 0, 1, 1.01),
    "min.insync.replicas": (1, 0, 1, INT_MAX, INT_MAX + 1),
    "min.compaction.lag.ms": (0, -1, 0, LONG_MAX, LONG_MAX + 1),
    "retention.bytes": (-1, -2, -1, LONG_MAX, LONG_MAX + 1),
    "retention.ms": (7 * DAY, -2, -1, LONG_MAX, LONG_MAX + 1),
    "segment.bytes": (1 << 30, (1 << 20) - 1, 1 << 20, INT_MAX, INT_MAX + 1),
    "segment.index.bytes": (10 << 20, 3, 4, INT_MAX, INT_MAX + 1),
    "segment.jitter.ms": (0, -1, 0, LONG_MAX, LONG_MAX + 1),
    "segment.ms": (7 * DAY, 0, 1, LONG_MAX, LONG_MAX + 1),
    "lapse.physical.delete.max.lag.ms": (DAY, -1, 0, LONG_MAX, LONG_MAX + 1),
    "lapse.tombstone.removal.max.lag.ms": (-1, -2, -1, LONG_MAX, LONG_MAX + 1),
}
TOPIC_WORDS = {
    "cleanup.policy": (
        frozenset({"delete"}),
        {
            "compact": frozenset({"compact"}),
            "compact,delete": frozenset({"compact", "delete"}),
            " delete , compact ": frozenset({"compact", "delete"}),
            "": frozenset(),
        },
        ["compress", "compact;delete", "Compact"],
    ),
    "compression.type": (
        "producer",
        {w: w for w in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")},
        ["none", "LZ4", ""],
    ),
    "message.timestamp.type": (0, {"CreateTime": 0, "LogAppendTime": 1}, ["createtime", "2"]),
    "message.format.version": (
        2,
        {"0.8.0": 0, "0.9.0.1": 0, "0.10.0": 1, "0.10.2-IV0": 1, "0.11.0": 2, "1.0": 2, "3.9": 2},
        ["0.7.2", "2", "v1", "", "3.0-IV"],
    ),
    **dict.fromkeys(
        ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"),
        (
            frozenset(),
            {"*": frozenset({"*"}), "0:1, 12:3": frozenset({"0:1", "12:3"}), "": frozenset()},
            ["*,0:1", "0", "0:", "a:b", "0:1;1:2", "-1:0", "none", "\u0663:1"],
        ),
    ),
    "lapse.roll.time": ("clock", {"clock": "clock", "record": "record"}, ["append", ""]),
    "lapse.tombstone.values.enable": (False, {"true": True, "False": False}, ["yes", ""]),
}


def field(name: str) -> str:
    return name.removeprefix("lapse.").replace(".", "_")


def test_every_topic_setting_is_tested_here() -> None:
    assert {s.name for s in TOPIC_SETTINGS} == set(TOPIC_NUMBERS) | set(TOPIC_WORDS)
    assert {s.field for s in TOPIC_SETTINGS} == {f.name for f in dataclasses.fields(TopicConfig)}


def test_topic_defaults_are_kafkas() -> None:
    """C-1, C-4."""
    config = topic_config({})
    for name, limits in (TOPIC_NUMBERS | TOPIC_WORDS).items():
        assert getattr(config, field(name)) == limits[0], name


@pytest.mark.parametrize("name", TOPIC_NUMBERS)
def test_numbers_have_limits(name: str) -> None:
    _, below, least, greatest, above = TOPIC_NUMBERS[name]
    beside = {"max.compaction.lag.ms": str(LONG_MAX)} if name == "min.compaction.lag.ms" else {}
    for value in (least, greatest):
        assert getattr(topic_config({**beside, name: f" {value} "}), field(name)) == value
    grouped = f"0_{greatest}"  # as Python writes numbers, and Java does not
    for text in (str(below), str(above), "many", "", "nan", "0x10", grouped):
        with pytest.raises(ConfigError) as e:
            topic_config({name: text})
        assert f"{name}={text}" in str(e.value)
        assert "allowed is a" in str(e.value)
        assert str(least) in str(e.value)


@pytest.mark.parametrize("name", TOPIC_WORDS)
def test_words(name: str) -> None:
    _, good, bad = TOPIC_WORDS[name]
    for text, value in good.items():
        assert getattr(topic_config({name: text}), field(name)) == value
    for text in bad:
        with pytest.raises(ConfigError) as e:
            topic_config({name: text})
        assert f"{name}={text}: allowed is" in str(e.value)
        word = next(word for word in good if word and "," not in word)
        assert word in str(e.value)


@pytest.mark.parametrize(
    ("setting", "synonyms"),
    [
        ("cleanup.policy", "log.cleanup.policy"),
        ("compression.type", "compression.type"),
        ("delete.retention.ms", "log.cleaner.delete.retention.ms"),
        ("file.delete.delay.ms", "log.segment.delete.delay.ms"),
        ("index.interval.bytes", "log.index.interval.bytes"),
        ("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        ("max.message.bytes", "message.max.bytes"),
        ("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
        ("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
        ("message.timestamp.difference.max.ms", "log.message.timestamp.difference.max.ms"),
        ("message.timestamp.type", "log.message.timestamp.type"),
        ("message.format.version", "log.message.format.version"),
        ("lapse.roll.time", "lapse.roll.time"),
        ("lapse.tombstone.values.enable", "lapse.tombstone.values.enable"),
        ("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
        ("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
        ("retention.bytes", "log.retention.bytes"),
        ("retention.ms", "log.retention.ms log.retention.minutes log.retention.hours"),
        ("segment.bytes", "log.segment.bytes"),
        ("segment.index.bytes", "log.index.size.max.bytes"),
        ("segment.jitter.ms", "log.roll.jitter.ms log.roll.jitter.hours"),
        ("segment.ms", "log.roll.ms log.roll.hours"),
        ("lapse.tombstone.removal.max.lag.ms", "lapse.tombstone.removal.max.lag.ms"),
    ],
)
def test_broker_synonyms_in_their_order(setting: str, synonyms: str) -> None:
    (row,) = (s for s in TOPIC_SETTINGS if s.name == setting)
    assert [name for name, _ in row.synonyms] == synonyms.split()


def test_the_finer_synonym_wins_and_the_topics_own_value_over_all() -> None:
    broker = {"log.retention.hours": "3"}
    assert topic_config({}, broker).retention_ms == 3 * 3_600_000
    broker["log.retention.minutes"] = "7"
    assert topic_config({}, broker).retention_ms == 7 * 60_000
    broker["log.retention.ms"] = "5"
    assert topic_config({}, broker).retention_ms == 5
    assert topic_config({"retention.ms": "4"}, broker).retention_ms == 4
    assert topic_config({}, {"log.retention.hours": "-1"}).retention_ms == -1  # not -3600000
    assert topic_config({}, {"log.roll.hours": "2"}).segment_ms == 2 * 3_600_000
    assert topic_config({}, {"log.roll.jitter.hours": "2"}).segment_jitter_ms == 2 * 3_600_000


def test_a_topics_own_retention_may_be_0_and_so_may_a_default_that_does_not_count() -> None:
    assert topic_config({"retention.ms": "0"}, {"log.retention.ms": "1"}).retention_ms == 0
    broker = {"log.retention.ms": "5", "log.retention.hours": "0"}
    assert topic_config({}, broker).retention_ms == 5  # as in Kafka
    assert topic_config({}, {"log.retention.bytes": "0"}).retention_bytes == 0


def test_kip_32s_older_name_for_both_timestamp_bounds() -> None:
    def bounds(topic: dict[str, str], broker: dict[str, str] | None = None) -> tuple[int, int]:
        config = topic_config(topic, broker)
        return config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms

    old = {"message.timestamp.difference.max.ms": "5"}
    assert bounds({}) == (LONG_MAX, 3_600_000)
    assert bounds(old) == (5, 5)
    assert bounds({**old, "message.timestamp.after.max.ms": "7"}) == (5, 7)
    assert bounds({**old, "message.timestamp.before.max.ms": "7"}) == (7, 5)
    assert bounds({}, {"log.message.timestamp.difference.max.ms": "6"}) == (6, 6)
    assert bounds(old, {"log.message.timestamp.before.max.ms": "9"}) == (9, 5)


@pytest.mark.parametrize(
    "bad",
    [
        {"log.retention.hours": "soon"},
        {"log.retention.hours": str(LONG_MAX)},  # too many, once they are milliseconds
        {"log.retention.ms": "-2"},
        {"log.retention.ms": "0"},  # all of every topic would go
        {"log.retention.minutes": "0"},
        {"log.retention.hours": "0"},
        {"log.roll.hours": "0"},
        {"log.cleanup.policy": "shred"},
    ],
)
def test_a_bad_default_names_the_brokers_setting(bad: dict[str, str]) -> None:
    ((name, text),) = bad.items()
    for make in (
        lambda: topic_config({}, bad),
        lambda: broker_config(bad),
        lambda: check_broker_value(name, text),
    ):
        with pytest.raises(ConfigError, match=f"^{name}={text}: allowed is"):
            make()


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    for name, said in (
        ("retention.msec", "did you mean retention.ms\\?"),
        ("log.retention.ms", "did you mean .*retention.ms\\?"),
        ("lapse.nonsense", "known are .*retention.ms"),
    ):
        with pytest.raises(ConfigError, match=f"unknown setting {name}; {said}"):
            topic_config({name: "1"})


def test_min_lag_may_not_exceed_max_lag() -> None:
    """C-2, S-9: it is what keeps a must-clean log cleanable."""
    assert topic_config({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min.compaction.lag.ms=6: .*max.compaction.lag.ms.* 5"):
        topic_config({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min.compaction.lag.ms"):
        topic_config({"min.compaction.lag.ms": "6"}, {"log.cleaner.max.compaction.lag.ms": "5"})


def test_tiny_segments_for_tests() -> None:
    """C-4: Kafka's own back door past KIP-1030's floor."""
    tiny = {"internal.segment.bytes": "8192"}
    assert topic_config(tiny).segment_bytes == 8192
    assert topic_config({**tiny, "segment.bytes": str(2 << 20)}).segment_bytes == 8192
    with pytest.raises(ConfigError, match=r"internal.segment.bytes=0: allowed is .* 1 "):
        topic_config({"internal.segment.bytes": "0"})
    with pytest.raises(ConfigError, match=r"segment.bytes=8192"):
        topic_config({"segment.bytes": "8192"})


def test_derived_values() -> None:
    both = topic_config({"cleanup.policy": "compact,delete"})
    assert (both.compacts, both.deletes) == (True, True)
    keeps = topic_config({"cleanup.policy": ""})  # C-3
    assert (keeps.compacts, keeps.deletes) == (False, False)
    assert topic_config({"delete.retention.ms": "77"}).removal_lag_ms == 77  # L4
    own = {"delete.retention.ms": "77", "lapse.tombstone.removal.max.lag.ms": "0"}
    assert topic_config(own).removal_lag_ms == 0


# --- the broker's own -----------------------------------------------------------------------------

# name: (default, bad, good, its value)
BROKER = {
    "node.id": (0, "-1", "7", 7),
    "log.dirs": ("", None, "/a,/b", "/a,/b"),
    "listeners": ("PLAINTEXT://127.0.0.1:9092", None, "PLAINTEXT://:0", "PLAINTEXT://:0"),
    "advertised.listeners": ("", None, "A://b:1", "A://b:1"),
    "lapse.http.port": (9093, "65536", "-1", -1),
    "num.partitions": (1, "0", "3", 3),
    "auto.create.topics.enable": (True, "yes", "FALSE", False),
    "socket.request.max.bytes": (100 << 20, "0", "1", 1),
    "fetch.max.bytes": (55 << 20, "1023", "1024", 1024),
    "max.incremental.fetch.session.cache.slots": (1000, "-1", "0", 0),
    "min.incremental.fetch.session.eviction.ms": (120_000, "-1", "0", 0),
    "zookeeper.connect": ("", None, "a:1,b:2/x", "a:1,b:2/x"),
    "zookeeper.session.timeout.ms": (18_000, "0", "1", 1),
    "zookeeper.connection.timeout.ms": (0, "-1", "9", 9),
    "max.connections.per.ip": (0x7FFFFFFF, "-1", "0", 0),
    "max.connections.per.ip.overrides": ("", None, "::1:5", "::1:5"),
    "max.connections": (0x7FFFFFFF, "-1", "0", 0),
    "queued.max.request.bytes": (-1, "-2", "0", 0),
    "lapse.queued.max.response.bytes": (-1, "-2", "0", 0),
    "lapse.fast.requests": (True, "yes", "false", False),
    "connections.max.idle.ms": (600_000, "-2", "-1", -1),
    "log.cleaner.enable": (True, "1", "false", False),
    "log.cleaner.backoff.ms": (15_000, "-1", "0", 0),
    "log.cleaner.dedupe.buffer.size": (128 << 20, "0", "1", 1),
    "log.cleaner.io.buffer.load.factor": (0.9, "1.1", "0.5", 0.5),
    "log.cleaner.io.max.bytes.per.second": (1.7976931348623157e308, "0", "1e6", 1e6),
    "log.flush.offset.checkpoint.interval.ms": (60_000, "0", "1", 1),
    "log.flush.start.offset.checkpoint.interval.ms": (60_000, "-1", "0", 0),
    "log.retention.check.interval.ms": (300_000, "0", "1", 1),
    "producer.id.expiration.ms": (DAY, "0", "1", 1),
    "inter.broker.protocol.version": (2, "1", "0.10.2", 1),
    "inter.broker.listener.name": ("", None, "INNER", "INNER"),
    "security.inter.broker.protocol": ("", None, "SSL", "SSL"),
    "sasl.mechanism.inter.broker.protocol": ("", None, "PLAIN", "PLAIN"),
    "broker.rack": ("", None, "a", "a"),
    "replica.selector.class": ("", "my.Selector", RACK_AWARE, RACK_AWARE),
    "default.replication.factor": (1, "0", "3", 3),
    "offsets.topic.replication.factor": (3, "0", "1", 1),
    "transaction.state.log.replication.factor": (3, "0", "1", 1),
    "transaction.state.log.min.isr": (2, "0", "1", 1),
    "auto.leader.rebalance.enable": (True, "yes", "false", False),
    "leader.imbalance.check.interval.seconds": (300, "0", "1", 1),
    "replica.lag.time.max.ms": (30_000, "0", "1", 1),
    "replica.fetch.wait.max.ms": (500, "-1", "0", 0),
    "replica.socket.timeout.ms": (30_000, "0", "1", 1),
    "replica.fetch.max.bytes": (1 << 20, "-1", "0", 0),
    "replica.fetch.response.max.bytes": (10 << 20, "-1", "0", 0),
    "leader.replication.throttled.rate": (LONG_MAX, "-1", "0", 0),
    "follower.replication.throttled.rate": (LONG_MAX, "-1", "0", 0),
    "replication.quota.window.num": (11, "0", "1", 1),
    "replication.quota.window.size.seconds": (1, "0", "1", 1),
    "replica.alter.log.dirs.io.max.bytes.per.second": (LONG_MAX, "-1", "0", 0),
    "alter.log.dirs.replication.quota.window.num": (11, "0", "1", 1),
    "alter.log.dirs.replication.quota.window.size.seconds": (1, "0", "1", 1),
    "lapse.replica.absence.max.ms": (604_800_000, "0", "1", 1),
    "offsets.topic.num.partitions": (50, "0", "1", 1),
    "offsets.topic.segment.bytes": (100 << 20, "0", "1", 1),
    "offsets.retention.minutes": (10_080, "0", "1", 1),
    "offsets.retention.check.interval.ms": (600_000, "0", "1", 1),
    "offset.metadata.max.bytes": (4096, "-1", "0", 0),
    "quota.window.num": (11, "1", "2", 2),
    "quota.window.size.seconds": (1, "0", "3600", 3600),
    "controller.quota.window.num": (11, "0", "1", 1),
    "controller.quota.window.size.seconds": (1, "0", "1", 1),
    "max.connection.creation.rate": (INT_MAX, "-1", "0", 0),
    "transaction.state.log.num.partitions": (50, "0", "1", 1),
    "transaction.state.log.segment.bytes": (100 << 20, "0", "1", 1),
    "transaction.max.timeout.ms": (900_000, "0", "1", 1),
    "transactional.id.expiration.ms": (604_800_000, "0", "1", 1),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (10_000, "0", "1", 1),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (3_600_000, "0", "1", 1),
    "transaction.partition.verification.enable": (True, "maybe", "false", False),
    "group.min.session.timeout.ms": (6000, "-1", "0", 0),
    "group.max.session.timeout.ms": (1_800_000, "-1", "0", 0),
    "group.initial.rebalance.delay.ms": (3000, "-1", "0", 0),
    "group.max.size": (INT_MAX, "0", "1", 1),
    "group.coordinator.rebalance.protocols": (
        ("classic", "consumer"),
        "consumer",
        "classic",
        ("classic",),
    ),
    "group.consumer.session.timeout.ms": (45_000, "0", "1", 1),
    "group.consumer.heartbeat.interval.ms": (5000, "0", "1", 1),
    "group.consumer.max.size": (INT_MAX, "0", "1", 1),
    "group.consumer.assignors": (
        ("uniform", "range"),
        "range,range",
        "range, uniform",
        ("range", "uniform"),
    ),
    "group.consumer.assignment.interval.ms": (1000, "-1", "0", 0),
    "group.consumer.regex.refresh.interval.ms": (600_000, "9999", "10000", 10_000),
    "group.consumer.migration.policy": ("bidirectional", "both", "upgrade", "upgrade"),
    "lapse.clock.jump.max.ms": (3_600_000, "-1", "0", 0),
    "lapse.housekeeping.interval.ms": (1000, "0", "1", 1),
    "lapse.lifecycle.master": ("local[*]", None, "local[2]", "local[2]"),
    "lapse.lifecycle.cores.max": (0, "-1", "2", 2),
    "lapse.lifecycle.idle.ms": (600_000, "-2", "-1", -1),
    "lapse.log.format": ("text", "xml", "json", "json"),
    "lapse.erase.orders.dir": ("", None, "/orders", "/orders"),
    "lapse.lifecycle.remote.enable": (False, "maybe", "true", True),
    "lapse.lifecycle.nice": (15, "20", "0", 0),
    "lapse.lifecycle.memory.bytes": (2 << 30, str((16 << 20) - 1), str(16 << 20), 16 << 20),
}


def test_every_broker_setting_is_tested_here() -> None:
    apart = {*SECURITY_SETTINGS, *ZOOKEEPER_SETTINGS}  # tests of their own
    others = [s for s in BROKER_SETTINGS if s not in apart]
    assert {s.name for s in others} == set(BROKER)
    fields = {f.name for f in dataclasses.fields(BrokerConfig)}
    assert {s.field for s in others} == fields - {"defaults", "given", "security", "zookeeper"}


@pytest.mark.parametrize("name", BROKER)
def test_broker_setting(name: str) -> None:
    """C-7, among others."""
    default, bad, good, value = BROKER[name]
    assert getattr(broker_config({}), field(name)) == default
    assert getattr(broker_config({name: good}), field(name)) == value
    if bad is not None:
        with pytest.raises(ConfigError, match=f"^{name}={bad}: allowed is"):
            broker_config({name: bad})


def test_server_properties_are_read_as_they_are() -> None:
    """Kafka's names that mean nothing here are no error; ours must be right."""
    config = broker_config({"zookeeper.connect": "z", "broker.id": "4", "log.dir": "/d",
                            "log.retention.ms": "9"})  # fmt: skip
    assert (config.node_id, config.log_dirs) == (4, "/d")
    assert dict(config.defaults) == {"log.retention.ms": "9"}
    assert topic_config({}, dict(config.defaults)).retention_ms == 9
    newer = {"broker.id": "4", "node.id": "5", "log.dir": "/d", "log.dirs": "/e"}
    assert broker_config(newer).node_id == 5
    assert broker_config(newer).log_dirs == "/e"
    with pytest.raises(ConfigError, match=r"unknown setting lapse\.http\.prt"):
        broker_config({"lapse.http.prt": "1"})


def test_what_was_given_is_remembered_as_it_was() -> None:
    """So that a client can be told which settings are the file's."""
    config = broker_config({"broker.id": "4", "num.partitions": "02", "log.retention.ms": "9"})
    assert dict(config.given) == {"node.id": "4", "num.partitions": "02"}
    assert broker_config({}).given == ()


def test_passwords_are_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row like any other, of the kind that nobody is shown."""

    def parse(text: str) -> Secret:
        if text == "1234":
            raise ValueError("something longer")
        return Secret(text)

    listeners = next(s for s in BROKER_SETTINGS if s.name == "listeners")
    secret = replace(listeners, form=Form(Kind.PASSWORD, parse))
    rows = tuple(secret if s.name == "listeners" else s for s in BROKER_SETTINGS)
    monkeypatch.setattr(config_module, "BROKER_SETTINGS", rows)
    assert secret.is_sensitive
    assert secret.name == "listeners"
    config = broker_config({"listeners": "hunter2"})
    assert dict(config.given) == {"listeners": HIDDEN}
    assert "hunter2" not in repr(config)
    with pytest.raises(ConfigError, match="something longer") as refused:
        broker_config({"listeners": "1234"})
    assert "1234" not in str(refused.value)


def test_passwords_are_secrets() -> None:
    assert PASSWORD.parse("hunter2") == Secret("hunter2")
    assert PASSWORD.kind is Kind.PASSWORD


def test_which_settings_may_change_while_a_broker_runs() -> None:
    """Kafka's, as far as a running broker follows them."""
    first = {s.synonyms[0][0] for s in TOPIC_SETTINGS if s.synonyms}
    assert {n for n in first if not is_dynamic(n)} == {"log.message.format.version"}
    for name in ("log.retention.hours", "log.retention.minutes", "log.roll.hours", "node.id",
                 "listeners", "num.partitions", "nonsense", "retention.ms"):  # fmt: skip
        assert not is_dynamic(name), name


def test_some_settings_may_be_a_listeners() -> None:
    name = "listener.name.CLIENTS.max.connection.creation.rate"
    assert of_listener(name) == ("clients", "max.connection.creation.rate")
    assert broker_setting(name).name == name
    assert is_dynamic(name)
    assert dict(broker_config({name: "5"}).given)[name] == "5"
    with pytest.raises(ConfigError, match=f"^{name}=-1: allowed is"):
        broker_config({name: "-1"})
    for other in ("listener.name.clients.num.partitions", "listener.name.max.connections",
                  "max.connection.creation.rate"):  # fmt: skip
        assert of_listener(other) is None
    assert not is_dynamic("listener.name.clients.num.partitions")


def test_one_source_over_another() -> None:
    below = {"log.retention.ms": "1", "log.retention.hours": "2", "message.max.bytes": "3"}
    assert overlaid(below, {"log.retention.minutes": "4"}) == {
        "message.max.bytes": "3", "log.retention.minutes": "4",
    }  # fmt: skip
    assert overlaid(below, {}) == below
    assert overlaid({"num.partitions": "1"}, {"num.partitions": "2"}) == {"num.partitions": "2"}


def test_rows_by_name() -> None:
    assert topic_setting("retention.ms").kind is Kind.LONG
    assert topic_setting("internal.segment.bytes").kind is Kind.INT
    assert broker_setting("log.retention.hours").name == "retention.ms"
    assert broker_setting("num.partitions").name == "num.partitions"
    check_broker_value("log.retention.hours", "-1")
    for refuse, words in (
        (lambda: topic_setting("log.retention.ms"), "unknown setting log.retention.ms"),
        (lambda: broker_setting("retention.ms"), "unknown setting retention.ms"),
        (lambda: check_broker_value("log.roll.hours", "0"), "log.roll.hours=0: allowed is"),
    ):
        with pytest.raises(ConfigError, match=words):
            refuse()


def test_split_settings() -> None:
    """`-c` takes topic and broker names (C-1)."""
    topic, broker = split_settings({
        "retention.ms": "1", "internal.segment.bytes": "9", "log.retention.ms": "2",
        "log.cleaner.dedupe.buffer.size": "4096",
    })  # fmt: skip
    assert topic == {"retention.ms": "1", "internal.segment.bytes": "9"}
    assert broker == {"log.retention.ms": "2", "log.cleaner.dedupe.buffer.size": "4096"}
    with pytest.raises(ConfigError, match="unknown setting nope"):
        split_settings({"nope": "1"})


def test_read_properties(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# note\n! note\n\n a.b = c=d \nempty=\nnovalue\n", encoding="utf-8")
    assert read_properties(path) == {"a.b": "c=d", "empty": "", "novalue": ""}
