"""A broker's settings in layers, and how they are described: value, source, synonyms (KIP-226).

From the top: this broker's dynamic settings, those of all brokers, the properties file, the
default. The dynamic layers are in the store and may change while the broker runs
(`broker.logs.topics`); a layer wins with all names of a setting, so a dynamic log.retention.ms also
hides a static log.retention.hours. What a store has and an older version allowed is described, so
that it can be deleted, and is not in force: the layer below it is.

Differs from Kafka's in one thing: the source of a topic's setting is the layer that its value came
from, under any name; Kafka says DEFAULT_CONFIG where the file has only log.retention.hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from lapse.metadata.features import ALL, Levels

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
    """One name whose value is in force, or would be if the names before it were not set."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """One setting, as DescribeConfigs answers it; a sensitive one has no value."""

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
        static: settings in the properties file that Lapse knows.
        cluster: dynamic settings of all brokers.
        broker: dynamic settings of this broker.
        levels: what all brokers have agreed to accept.
    """

    static: Texts
    cluster: Texts = field(default_factory=dict)
    broker: Texts = field(default_factory=dict)
    levels: Levels = ALL

    @staticmethod
    def of_file(config: BrokerConfig) -> BrokerSettings:
        """The settings of a broker without dynamic ones."""
        return BrokerSettings(dict((*config.given, *config.defaults)))

    @cached_property
    def defaults(self) -> Texts:
        """The settings that `topic_config` falls back to."""
        return overlaid(overlaid(self.static, self.in_force.cluster), self.in_force.broker)

    @cached_property
    def in_force(self) -> BrokerSettings:
        """Without what the dynamic layers may not have."""
        cluster, broker = fit_broker_values(self.cluster), fit_broker_values(self.broker)
        if (cluster, broker) == (self.cluster, self.broker):
            return self
        return replace(self, cluster=cluster, broker=broker)

    def not_in_force(self) -> Iterator[str]:
        """What they may not have, in words."""
        for layer, of in ((self.cluster, "all brokers"), (self.broker, "this broker")):
            for why in unfit_broker_values(layer).values():
                yield f"of {of}: {why}"

    @cached_property
    def bare_topic(self) -> tuple[TopicConfig, Mapping[str, Described]]:
        """Settings in force, and described, of a topic that sets none itself."""
        in_force, _ = self.settled({})
        described = (_topic_setting(row, {}, self, in_force) for row in TOPIC_SETTINGS)
        return in_force, {setting.name: setting for setting in described}

    @cached_property
    def of_listeners(self) -> tuple[str, ...]:
        """Names of settings that some layer has for one listener (`listener.name.NAME.…`)."""
        names = {*self.static, *self.cluster, *self.broker}
        return tuple(sorted(filter(of_listener, names)))

    def config_of(
        self, overrides: Texts, before: Iterable[Contradiction] | None = None
    ) -> TopicConfig:
        """A topic's settings in force with requested `overrides`; raises ConfigError.

        Contradictions that were there `before` are allowed: a change of another setting did not
        cause them. For a new topic those are the contradictions of the broker's settings.
        """
        config, found = self.settled(overrides)
        if found:
            known = frozenset(self.settled({})[1] if before is None else before)
            for contradiction in found:
                if contradiction not in known:
                    raise ConfigError(contradiction.text)
        return config

    def settled(self, overrides: Texts) -> tuple[TopicConfig, tuple[Contradiction, ...]]:
        """A topic's settings in force, and settled contradictions; ConfigError for a bad value."""
        return settled_config(overrides, self.defaults, self.levels.caps)

    def below_topics(self, name: str) -> str:
        """The text in force for a topic that does not set `name`; raises ConfigError."""
        setting = topic_setting(name)
        first = next(self.in_force.synonyms(name for name, _ in setting.synonyms), None)
        return setting.default if first is None else first.value or ""

    def below(self, name: str, *, all_brokers: bool) -> str:
        """The text in force where a dynamic layer does not set `name`; raises ConfigError."""
        broker_setting(name)
        lower = BrokerSettings(self.static, {} if all_brokers else self.in_force.cluster)
        first = next(lower.synonyms((name,)), None)
        return "" if first is None else first.value or ""

    def synonyms(self, names: Iterable[str]) -> Iterator[Synonym]:
        """Every value that is set of the named broker settings, in the order of precedence."""
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
    """Check that a running broker may take these: known, each valid by itself, and dynamic.

    Raises ConfigError, or ReadOnly for one that can be set in the properties file only.
    """
    for name, text in settings.items():
        check_broker_value(name, text)
        if not is_dynamic(name):
            raise ReadOnly(f"{name}: read-only: it is set in the properties file, before a start")


class ReadOnly(ConfigError):
    """A setting that cannot be changed while the broker runs."""


def unfit_broker_values(settings: Mapping[str, str]) -> dict[str, str]:
    """Which broker settings have a value that they may not have, and why, in words.

    A store may have them of a version that allowed more.
    """
    unfit = {}
    for name, text in settings.items():
        try:
            check_broker_value(name, text)
        except ConfigError as e:
            unfit[name] = str(e)
    return unfit


def fit_broker_values(settings: Mapping[str, str]) -> Mapping[str, str]:
    """The others, which are in force."""
    unfit = unfit_broker_values(settings)
    return {name: text for name, text in settings.items() if name not in unfit}


# --- described settings of topics ---------------------------------------------------------------


def describe_topic(
    overrides: Texts, settings: BrokerSettings, in_force: TopicConfig
) -> list[Described]:
    """All settings of a topic, in the table's order; `in_force`: the result of the other two."""
    bare_config, bare = settings.bare_topic
    described = [
        bare[row.name]
        if row.name not in overrides
        and getattr(in_force, row.field) == getattr(bare_config, row.field)
        else _topic_setting(row, overrides, settings, in_force)
        for row in TOPIC_SETTINGS
    ]
    if TINY_SEGMENTS.name in overrides:
        described.append(_topic_setting(TINY_SEGMENTS, overrides, settings, in_force))
    return described


def _topic_setting(
    setting: Setting, overrides: Texts, settings: BrokerSettings, in_force: TopicConfig
) -> Described:
    synonyms = tuple(settings.in_force.synonyms(name for name, _ in setting.synonyms))
    source, text = Source.DEFAULT, setting.default
    if synonyms:
        source, text = synonyms[0].source, synonyms[0].value or ""
    if setting.name in overrides:
        source, text = Source.TOPIC, overrides[setting.name]
    value = text.strip()
    if setting is not TINY_SEGMENTS:
        value = as_text(setting, text, getattr(in_force, setting.field))
    if source is Source.TOPIC:
        synonyms = (Synonym(setting.name, value, source), *synonyms)
    return Described(setting.name, value, source, setting.kind, setting.doc, synonyms)


def as_text(setting: Setting, text: str, value: Any) -> str:
    """A value as a user would write it; `text` is how it was written."""
    if setting.name == "message.format.version":
        return text  # many versions stand for one format
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    if isinstance(value, bool):
        return str(value).lower()
    if setting.name == "message.timestamp.type":
        return ("CreateTime", "LogAppendTime")[value]
    return str(value)


# --- described settings of brokers --------------------------------------------------------------


def describe_broker(settings: BrokerSettings) -> list[Described]:
    """All settings of one broker; the first synonym of each is its name, as in Kafka."""
    return [_broker_setting(name, settings) for name in (*BROKER_NAMES, *settings.of_listeners)]


def describe_all_brokers(settings: BrokerSettings) -> list[Described]:
    """The dynamic settings of all brokers only, as in Kafka."""
    only = BrokerSettings({}, settings.cluster)
    names = (*BROKER_NAMES, *only.of_listeners)
    described = [_broker_setting(name, only) for name in names if name in settings.cluster]
    return [
        replace(
            setting,
            synonyms=tuple(
                s for s in setting.synonyms if s.source is Source.DYNAMIC_DEFAULT_BROKER
            ),
        )
        for setting in described
    ]


def _broker_setting(name: str, settings: BrokerSettings) -> Described:
    setting = broker_setting(name)
    factors = dict(setting.synonyms)
    found = of_listener(name)
    names = factors or ((name,) if found is None else (name, found[1]))
    every = list(settings.synonyms(names))
    first = next((n for n, synonym in enumerate(every) if synonym.name == name), len(every))
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


def _broker_defaults() -> Iterator[tuple[str, str]]:
    """Of a setting's names only the last has a default, in that name's unit, as in Kafka."""
    for setting in BROKER_SETTINGS:
        yield setting.name, setting.default
    for setting in TOPIC_SETTINGS:
        if not setting.synonyms:
            continue
        name, factor = setting.synonyms[-1]
        yield name, setting.default if factor == 1 else str(int(setting.default) // factor)


_BROKER_DEFAULTS = dict(_broker_defaults())
BROKER_NAMES = (
    *(setting.name for setting in BROKER_SETTINGS),
    *dict.fromkeys(name for setting in TOPIC_SETTINGS for name, _ in setting.synonyms),
)
