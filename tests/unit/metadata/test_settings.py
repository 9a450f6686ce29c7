"""Layers of broker settings: which one wins, and the source of a value (KIP-226)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base import config
from lapse.base.config import BROKER_SETTINGS, TOPIC_SETTINGS, broker_config
from lapse.base.errors import ConfigError
from lapse.base.setting import PASSWORD, Kind
from lapse.metadata.settings import (
    BROKER_NAMES,
    BrokerSettings,
    Described,
    ReadOnly,
    Source,
    Synonym,
    check_changeable,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)

HOUR_MS = 3_600_000


def topic(overrides: dict[str, str], settings: BrokerSettings) -> dict[str, Described]:
    found = describe_topic(overrides, settings, settings.config_of(overrides))
    return {setting.name: setting for setting in found}


def broker(settings: BrokerSettings) -> dict[str, Described]:
    return {setting.name: setting for setting in describe_broker(settings)}


def pairs(setting: Described) -> list[tuple[str, str | None, int]]:
    return [(s.name, s.value, s.source) for s in setting.synonyms]


# Which layer sets message.max.bytes: the layers, then the value in force and its source.
LAYERS = {
    "nobody": ({}, {}, {}, 1048588, Source.DEFAULT),
    "the file": ({"message.max.bytes": "1"}, {}, {}, 1, Source.STATIC_BROKER),
    "all brokers": (
        {"message.max.bytes": "1"}, {"message.max.bytes": "2"}, {}, 2,
        Source.DYNAMIC_DEFAULT_BROKER,
    ),
    "this broker": (
        {"message.max.bytes": "1"}, {"message.max.bytes": "2"}, {"message.max.bytes": "3"}, 3,
        Source.DYNAMIC_BROKER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_above_wins_and_is_named(name: str) -> None:
    static, cluster, of_broker, value, source = LAYERS[name]
    settings = BrokerSettings(static, cluster, of_broker)
    assert settings.config_of({}).max_message_bytes == value
    assert settings.config_of({"max.message.bytes": "9"}).max_message_bytes == 9
    described = topic({}, settings)["max.message.bytes"]
    assert (described.value, described.source, described.kind) == (str(value), source, Kind.INT)
    overridden = topic({"max.message.bytes": " 9 "}, settings)["max.message.bytes"]
    assert (overridden.value, overridden.source) == ("9", Source.TOPIC)
    assert pairs(overridden)[0] == ("max.message.bytes", "9", 1)
    assert overridden.synonyms[1:] == described.synonyms


def test_synonyms_come_in_the_order_in_which_they_win() -> None:
    """KIP-226: all names of one layer, then the next."""
    settings = BrokerSettings(
        {"log.retention.hours": "3", "log.retention.minutes": "7"},
        {"log.retention.ms": "5"},
        {"log.retention.ms": "4"},
    )
    described = topic({"retention.ms": "1"}, settings)["retention.ms"]
    assert pairs(described) == [
        ("retention.ms", "1", 1),
        ("log.retention.ms", "4", 2),
        ("log.retention.ms", "5", 3),
        ("log.retention.minutes", "7", 4),
        ("log.retention.hours", "3", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_a_layer_hides_other_names_of_what_it_sets() -> None:
    settings = BrokerSettings({"log.retention.ms": "5", "log.retention.hours": "2"})
    assert settings.config_of({}).retention_ms == 5
    above = BrokerSettings(settings.static, {"log.retention.minutes": "7"})
    assert above.config_of({}).retention_ms == 7 * 60_000
    assert settings.static["log.retention.ms"] == "5"


def test_a_topics_value_from_hours_is_the_files() -> None:
    described = topic({}, BrokerSettings({"log.retention.hours": "3"}))["retention.ms"]
    assert (described.value, described.source) == (str(3 * HOUR_MS), Source.STATIC_BROKER)


def test_every_topic_setting_is_told_with_type_and_words() -> None:
    described = topic({}, BrokerSettings({}))
    assert list(described) == [s.name for s in TOPIC_SETTINGS]
    assert all(one.doc and not one.is_sensitive and not one.read_only for one in described.values())
    kinds = {
        "cleanup.policy": Kind.LIST, "retention.ms": Kind.LONG, "segment.bytes": Kind.INT,
        "min.cleanable.dirty.ratio": Kind.DOUBLE, "message.timestamp.type": Kind.STRING,
        "lapse.tombstone.values.enable": Kind.BOOLEAN,
    }  # fmt: skip
    assert {name: described[name].kind for name in kinds} == kinds
    assert (described["message.timestamp.type"].value, described["cleanup.policy"].value) == (
        "CreateTime", "delete",
    )  # fmt: skip
    tiny = topic({"internal.segment.bytes": "8192"}, BrokerSettings({}))
    assert (tiny["internal.segment.bytes"].value, tiny["internal.segment.bytes"].source) == (
        "8192", Source.TOPIC,
    )  # fmt: skip


def test_kip_32s_older_name_shows_in_the_bounds_it_stands_in_for() -> None:
    described = topic({"message.timestamp.difference.max.ms": "5"}, BrokerSettings({}))
    assert described["message.timestamp.before.max.ms"].value == "5"


def test_a_broker_tells_every_name_and_begins_with_its_own() -> None:
    settings = BrokerSettings.of_file(
        broker_config({"log.retention.hours": "3", "broker.id": "4", "log.dirs": "/d"})
    )
    described = broker(settings)
    names = {s.name for s in BROKER_SETTINGS} | {n for s in TOPIC_SETTINGS for n, _ in s.synonyms}
    assert set(described) == names == set(BROKER_NAMES)
    hours = described["log.retention.hours"]
    assert pairs(hours) == [("log.retention.hours", "3", 4), ("log.retention.hours", "168", 5)]
    assert (hours.value, hours.kind, hours.read_only) == ("3", Kind.INT, True)
    unset = described["log.retention.ms"]
    assert (unset.value, unset.source, unset.read_only) == (None, Source.DEFAULT, False)
    assert (unset.synonyms, unset.kind) == ((), Kind.LONG)
    assert (described["node.id"].value, described["node.id"].source) == ("4", Source.STATIC_BROKER)
    assert (described["num.partitions"].value, described["num.partitions"].source) == (
        "1",
        Source.DEFAULT,
    )
    assert described["log.message.format.version"].read_only


def test_a_listeners_setting_is_told_where_somebody_set_it() -> None:
    name, base = "listener.name.l.max.connection.creation.rate", "max.connection.creation.rate"
    settings = BrokerSettings.of_file(broker_config({base: "9", name: "5"}))
    one = broker(settings)[name]
    assert (one.value, one.source, one.read_only) == ("5", Source.STATIC_BROKER, False)
    assert pairs(one) == [(name, "5", 4), (base, "9", 4), (base, "2147483647", 5)]
    check_changeable({name: "7"})
    changed = replace(settings, cluster={name: "7"})
    assert broker(changed)[name].value == "7"
    assert [described.name for described in describe_all_brokers(changed)] == [name]
    assert name not in broker(BrokerSettings({}))


def test_a_password_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its value nor a synonym's; whether it is set, and where, is no secret."""
    rows = {**config._BROKER, "listeners": replace(config._BROKER["listeners"], form=PASSWORD)}
    monkeypatch.setattr(config, "_BROKER", rows)
    described = broker(BrokerSettings({"listeners": "hunter2"}, {"listeners": "hunter3"}))[
        "listeners"
    ]
    assert (described.value, described.source, described.is_sensitive) == (None, 3, True)
    assert [s.value for s in described.synonyms] == [None] * 3
    assert "hunter" not in repr(described)


def test_all_brokers_have_only_what_was_changed() -> None:
    settings = BrokerSettings({"message.max.bytes": "1"}, {"message.max.bytes": "2"}, {})
    (only,) = describe_all_brokers(settings)
    assert (only.name, only.value, only.source) == ("message.max.bytes", "2", 3)
    assert only.synonyms == (Synonym("message.max.bytes", "2", Source.DYNAMIC_DEFAULT_BROKER),)


def test_what_an_older_version_allowed_is_told_and_is_not_in_force() -> None:
    zero, older = {"log.retention.ms": "0"}, {"log.retention.minutes": "3", "unknown": "1"}
    settings = BrokerSettings({"log.retention.hours": "1"}, older, zero)
    assert settings.settled({})[0].retention_ms == 180_000
    of_all, of_this = settings.not_in_force()
    assert of_all.startswith("of all brokers: unknown setting unknown; known are")
    assert of_this.startswith("of this broker: log.retention.ms=0: allowed is -1, which is")
    assert settings.below_topics("retention.ms") == "3"
    (topics,) = (d for d in describe_topic({}, settings, settings.settled({})[0])
                 if d.name == "retention.ms")  # fmt: skip
    assert (topics.value, topics.source) == ("180000", Source.DYNAMIC_DEFAULT_BROKER)
    (own,) = (d for d in describe_broker(settings) if d.name == "log.retention.ms")
    assert (own.value, own.source) == ("0", Source.DYNAMIC_BROKER)  # or no tool would delete it
    with pytest.raises(ConfigError, match="allowed is -1"):
        check_changeable(zero)


def test_what_holds_below_a_layer() -> None:
    settings = BrokerSettings({"log.cleanup.policy": "compact"}, {"log.cleanup.policy": "delete"})
    assert settings.below_topics("cleanup.policy") == "delete"
    assert settings.below("log.cleanup.policy", all_brokers=False) == "delete"
    assert settings.below("log.cleanup.policy", all_brokers=True) == "compact"
    assert BrokerSettings({}).below_topics("cleanup.policy") == "delete"
    with pytest.raises(ConfigError, match="unknown setting cleanup"):
        settings.below_topics("cleanup")


@pytest.mark.parametrize(
    "name", ["log.retention.hours", "log.message.format.version", "node.id", "listeners"]
)
def test_some_settings_are_read_only(name: str) -> None:
    """Kafka's rule: the first of several names, and what a running broker can follow."""
    text = {"log.message.format.version": "3.0", "listeners": "x"}.get(name, "1")
    with pytest.raises(ReadOnly, match=f"^{name}: read-only"):
        check_changeable({name: text})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"log.retention.ms": "-2"}, "log.retention.ms=-2: allowed is a whole number from -1"),
        ({"log.cleanup.policy": "shred"}, "log.cleanup.policy=shred: allowed is"),
        ({"nonsense": "1"}, "unknown setting nonsense"),
    ],
)
def test_a_change_is_judged(settings: dict[str, str], words: str) -> None:
    check_changeable({"log.retention.ms": "1", "compression.type": "zstd"})
    with pytest.raises(ConfigError, match=words) as refused:
        check_changeable(settings)
    assert not isinstance(refused.value, ReadOnly)
