"""A broker's settings in layers, and what is told of a setting: value, source, synonyms (KIP-226).

From the top: this broker's own dynamic settings, those of all brokers, the properties file, the
default. The dynamic layers are in the store and may change while the broker runs
(`broker.logs.topics`); a layer wins with all names of a setting, so a dynamic log.retention.ms also
hides a static log.retention.hours.

Differs from Kafka's in one thing: the source of a topic's setting is the layer that its value came
from, under whatever name; Kafka says DEFAULT_CONFIG where the file has only log.retention.hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

from lapse.base.config import (
    BROKER_SETTINGS,
    TINY_SEGMENTS,
    TOPIC_SETTINGS,
    BrokerConfig,
    TopicConfig,
    broker_setting,
    check_broker_value,
    is_dynamic,
    of_listener,
    overlaid,
    settled_config,
    topic_setting,
)
from lapse.base.contradictions import Contradiction
from lapse.base.errors import ConfigError
from lapse.base.setting import Kind, Setting

Texts = Mapping[str, str]


class Source(IntEnum):
    """Where a value comes from, by the numbers of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    """One name whose value holds, or would if those before it were not set."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """One setting, as a client is told; a sensitive one has no value."""

    name: str
    value: str | None
    source: Source
    kind: Kind
    doc: str
    synonyms: tuple[Synonym, ...]
    read_only: bool = False
    is_sensitive: bool = False


@dataclass(frozen=True)
class BrokerSettings:
    """One broker's settings.

    Attributes:
        static: what the properties file has of the settings that Lapse knows.
        cluster: dynamic ones of all brokers.
        broker: dynamic ones of this broker.
    """

    static: Texts
    cluster: Texts = field(default_factory=dict)
    broker: Texts = field(default_factory=dict)

    @staticmethod
    def of_file(config: BrokerConfig) -> BrokerSettings:
        """Those of a broker whose settings were never changed."""
        return BrokerSettings(dict((*config.given, *config.defaults)))

    @cached_property
    def defaults(self) -> Texts:
        """What `topic_config` falls back to."""
        return overlaid(overlaid(self.static, self.cluster), self.broker)

    @cached_property
    def bare_topic(self) -> tuple[TopicConfig, Mapping[str, Described]]:
        """What is in force, and told, of a topic without settings of its own."""
        in_force, _ = self.settled({})
        told = (_topic_setting(row, {}, self, in_force) for row in TOPIC_SETTINGS)
        return in_force, {one.name: one for one in told}

    @cached_property
    def of_listeners(self) -> tuple[str, ...]:
        """Names of settings that some layer has for one listener (`listener.name.NAME.…`)."""
        names = {*self.static, *self.cluster, *self.broker}
        return tuple(sorted(filter(of_listener, names)))

    def config_of(
        self, overrides: Texts, before: Iterable[Contradiction] | None = None
    ) -> TopicConfig:
        """Settings that somebody wants a topic to have; raises ConfigError.

        They may contradict each other as they did `before`: who changes another setting has nothing
        to do with that. For a new topic that is what the broker's own settings do.
        """
        config, found = self.settled(overrides)
        if found:
            known = frozenset(self.settled({})[1] if before is None else before)
            for one in found:
                if one not in known:
                    raise ConfigError(one.text)
        return config

    def settled(self, overrides: Texts) -> tuple[TopicConfig, tuple[Contradiction, ...]]:
        """A topic's settings in force, and what was settled; raises ConfigError for a bad value."""
        return settled_config(overrides, self.defaults)

    def below_topics(self, name: str) -> str:
        """The text that holds for a topic that does not set this; raises ConfigError."""
        setting = topic_setting(name)
        first = next(self.synonyms(name for name, _ in setting.synonyms), None)
        return setting.default if first is None else first.value or ""

    def below(self, name: str, *, all_brokers: bool) -> str:
        """The text that holds where a dynamic layer does not set this; raises ConfigError."""
        broker_setting(name)
        lower = BrokerSettings(self.static, {} if all_brokers else self.cluster)
        first = next(lower.synonyms((name,)), None)
        return "" if first is None else first.value or ""

    def synonyms(self, names: Iterable[str]) -> Iterator[Synonym]:
        """Every value that some of these broker settings have, in the order of precedence."""
        names = tuple(names)
        layers = (
            (self.broker, Source.DYNAMIC_BROKER),
            (self.cluster, Source.DYNAMIC_DEFAULT_BROKER),
            (self.static, Source.STATIC_BROKER),
            (_BROKER_DEFAULTS, Source.DEFAULT),
        )
        for layer, source in layers:
            for name in names:
                if name in layer:
                    sensitive = broker_setting(name).is_sensitive
                    yield Synonym(name, None if sensitive else layer[name], source)


# --- what may be changed ------------------------------------------------------------------------


def check_changeable(settings: Texts) -> None:
    """Whether a running broker may be given these: known, each right by itself, and dynamic.

    Raises ConfigError, or ReadOnly for one that is set in the properties file only.
    """
    for name, text in settings.items():
        check_broker_value(name, text)
        if not is_dynamic(name):
            raise ReadOnly(f"{name}: read-only: it is set in the properties file, before a start")


class ReadOnly(ConfigError):
    """A setting that cannot be changed while the broker runs."""


# --- what is told of topics ---------------------------------------------------------------------


def describe_topic(
    overrides: Texts, settings: BrokerSettings, in_force: TopicConfig
) -> list[Described]:
    """All settings of a topic, in the table's order; `in_force` is what the others amount to."""
    bare_config, bare = settings.bare_topic
    told = [
        bare[row.name]
        if row.name not in overrides
        and getattr(in_force, row.field) == getattr(bare_config, row.field)
        else _topic_setting(row, overrides, settings, in_force)
        for row in TOPIC_SETTINGS
    ]
    if TINY_SEGMENTS.name in overrides:
        told.append(_topic_setting(TINY_SEGMENTS, overrides, settings, in_force))
    return told


def _topic_setting(
    setting: Setting, overrides: Texts, settings: BrokerSettings, in_force: TopicConfig
) -> Described:
    synonyms = tuple(settings.synonyms(name for name, _ in setting.synonyms))
    source, said = Source.DEFAULT, setting.default
    if synonyms:
        source, said = synonyms[0].source, synonyms[0].value or ""
    if setting.name in overrides:
        source, said = Source.TOPIC, overrides[setting.name]
    value = said.strip()
    if setting is not TINY_SEGMENTS:
        value = as_text(setting, said, getattr(in_force, setting.field))
    if source is Source.TOPIC:
        synonyms = (Synonym(setting.name, value, source), *synonyms)
    return Described(setting.name, value, source, setting.kind, setting.doc, synonyms)


def as_text(setting: Setting, said: str, value: Any) -> str:
    """A value as a user would write it; `said` is how somebody did."""
    if setting.name == "message.format.version":
        return said  # many versions stand for one format
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    if isinstance(value, bool):
        return str(value).lower()
    if setting.name == "message.timestamp.type":
        return ("CreateTime", "LogAppendTime")[value]
    return str(value)


# --- what is told of brokers --------------------------------------------------------------------


def describe_broker(settings: BrokerSettings) -> list[Described]:
    """All settings of one broker; each begins its synonyms with its own name, as Kafka's do."""
    return [_broker_setting(name, settings) for name in (*BROKER_NAMES, *settings.of_listeners)]


def describe_all_brokers(settings: BrokerSettings) -> list[Described]:
    """The dynamic settings of all brokers, and no others, as Kafka does."""
    only = BrokerSettings({}, settings.cluster)
    names = (*BROKER_NAMES, *only.of_listeners)
    told = [_broker_setting(name, only) for name in names if name in settings.cluster]
    return [_only_dynamic(one) for one in told]


def _broker_setting(name: str, settings: BrokerSettings) -> Described:
    setting = broker_setting(name)
    factors = dict(setting.synonyms)
    found = of_listener(name)
    names = factors or ((name,) if found is None else (name, found[1]))
    every = list(settings.synonyms(names))
    first = next((n for n, one in enumerate(every) if one.name == name), len(every))
    synonyms = tuple(every[first:])
    return Described(
        name,
        synonyms[0].value if synonyms else None,
        synonyms[0].source if synonyms else Source.DEFAULT,
        Kind.INT if factors.get(name, 1) > 1 else setting.kind,
        setting.doc,
        synonyms,
        read_only=not is_dynamic(name),
        is_sensitive=setting.is_sensitive,
    )


def _only_dynamic(one: Described) -> Described:
    kept = tuple(s for s in one.synonyms if s.source is Source.DYNAMIC_DEFAULT_BROKER)
    return Described(
        one.name, one.value, one.source, one.kind, one.doc, kept, one.read_only, one.is_sensitive
    )


def _broker_defaults() -> Iterator[tuple[str, str]]:
    """Of several names of one setting only the last has a default, in its own unit, as in Kafka."""
    for setting in BROKER_SETTINGS:
        yield setting.name, setting.default
    for setting in TOPIC_SETTINGS:
        name, factor = setting.synonyms[-1]
        yield name, setting.default if factor == 1 else str(int(setting.default) // factor)


_BROKER_DEFAULTS = dict(_broker_defaults())
BROKER_NAMES = (
    *(setting.name for setting in BROKER_SETTINGS),
    *dict.fromkeys(name for setting in TOPIC_SETTINGS for name, _ in setting.synonyms),
)
