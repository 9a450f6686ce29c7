"""Feature levels: what all brokers of a cluster have agreed to accept (KIP-584), kept in the store.

Kafka's FeatureControlManager.

A level is what may be written, never how something stored is read: every broker reads all there
is, whatever the level. So no level makes a tombstone a value, or hides a record.

`lapse.protocol.version` is what `inter.broker.protocol.version` is in the migrations of KIP-32 and
KIP-107. A broker's file says how far that broker may go; the controller raises the level as soon as
every broker may, and it never goes back:

    1  before 0.10: records are written as v0; nobody has log starts
    2  0.10: and as v1, with timestamps (KIP-32)
    3  0.11: and as v2; DeleteRecords is answered (KIP-107)

`lapse.tombstone.values` (KIP-87) is finalized at level 1 by a person, once consumers know the flag;
without it a flagged tombstone is stored with the value null, whatever its topic says. In a new
cluster whose first broker may use all of this, it is finalized from the start.

`group.version` is Kafka's: groups of KIP-848, always in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import msgspec

from lapse.base.config import BrokerConfig
from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, CorruptData, ErrorCode, KafkaError
from lapse.wire.schema.api_versions import FinalizedFeatureKey
from lapse.wire.versions import (
    GROUP_VERSION,
    PROTOCOL_NEWEST,
    PROTOCOL_VERSION,
    SUPPORTED_FEATURES,
    TOMBSTONE_VALUES,
)

TIMES, DELETIONS = 2, 3  # the protocol's levels from which on there are such
NEWEST = PROTOCOL_NEWEST
SETTING = "inter.broker.protocol.version"
_GROUP_LEVEL = 1
_FORMAT_OF = {1: 0, TIMES: 1, DELETIONS: 2}  # the newest that may be written
_FROM = {1: "0.8.0", TIMES: "0.10.0", DELETIONS: "0.11.0"}  # Kafka's version that begins with it


class Way(IntEnum):
    """Which changes a request allows, by the numbers of UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class Update:
    """What somebody wants of one feature; level 0 is no more of it."""

    feature: str
    level: int
    way: Way = Way.UPGRADE


@dataclass(frozen=True)
class Levels:
    """The levels in force.

    Attributes:
        epoch: one more with each change.
    """

    protocol: int = NEWEST
    tombstone_values: int = 1
    epoch: int = 0

    @staticmethod
    def first(protocol: int) -> Levels:
        """Of a new cluster whose first broker may go so far."""
        return Levels(protocol, int(protocol == NEWEST))

    @cached_property
    def caps(self) -> Mapping[str, int]:
        """The most that a topic's settings may be, by their fields."""
        return {
            "message_format_version": _FORMAT_OF[min(self.protocol, NEWEST)],
            "tombstone_values_enable": self.tombstone_values,
        }

    @property
    def has_deletions(self) -> bool:
        """Whether records may be deleted before an offset, so that log starts differ."""
        return self.protocol >= DELETIONS

    @cached_property
    def finalized(self) -> tuple[FinalizedFeatureKey, ...]:
        """As ApiVersions has them."""
        levels = {
            GROUP_VERSION: _GROUP_LEVEL,
            PROTOCOL_VERSION: self.protocol,
            TOMBSTONE_VALUES: self.tombstone_values,
        }
        return tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
            if level
        )


# What a store goes by that was made before there were any: its brokers could do it all.
ALL = Levels()


def protocol_of(config: BrokerConfig) -> int:
    """How far a broker may go by its file."""
    return config.inter_broker_protocol_version + 1  # parsed as the newest format of that version


def version_of(level: int) -> str:
    """The first of Kafka's versions whose brokers are on that level."""
    return _FROM[level]


def require_fit(levels: Levels, protocol: int) -> None:
    """Raise ConfigError where a broker that may go so far cannot be in the cluster."""
    if levels.protocol > NEWEST or levels.tombstone_values > 1:
        raise ConfigError(
            f"{PROTOCOL_VERSION}={levels.protocol}, {TOMBSTONE_VALUES}={levels.tombstone_values}: "
            f"a newer Lapse has raised the cluster's levels; this one knows {NEWEST} and 1"
        )
    if protocol < levels.protocol:
        raise ConfigError(
            f"{SETTING}: allowed is {version_of(levels.protocol)} or later: {PROTOCOL_VERSION} is "
            f"at {levels.protocol}, and never goes back"
        )


def agreed(levels: Levels, protocols: Iterable[int]) -> Levels | None:
    """What is in force once all brokers there are may go further; None while one may not."""
    reached = min((*protocols, NEWEST))
    if reached <= levels.protocol:
        return None
    return replace(levels, protocol=reached, epoch=levels.epoch + 1)


def updated(levels: Levels, updates: Iterable[Update], protocols: Mapping[int, int]) -> Levels:
    """What is in force with all of a request's updates; raises KafkaError.

    `protocols`: how far each broker that is there may go.
    """
    seen: set[str] = set()
    after = levels
    for update in updates:
        if update.feature in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.feature} is named twice")
        seen.add(update.feature)
        after = _UPDATES.get(update.feature, _unknown)(after, update, protocols)
    if after.tombstone_values and after.protocol < DELETIONS:
        raise _refused(
            f"{TOMBSTONE_VALUES} needs {PROTOCOL_VERSION}={DELETIONS}; it is at {after.protocol}"
        )
    return levels if after == levels else replace(after, epoch=levels.epoch + 1)


def _protocol(levels: Levels, update: Update, protocols: Mapping[int, int]) -> Levels:
    _check(update, levels.protocol, 1, NEWEST)
    if update.level < levels.protocol:
        raise _refused(
            f"{PROTOCOL_VERSION} never goes back: what was written since no older broker could read"
        )
    behind = sorted(broker for broker, most in protocols.items() if most < update.level)
    if behind:
        raise _refused(
            f"{PROTOCOL_VERSION}={update.level}: {SETTING} of broker "
            f"{', '.join(map(str, behind))} is before {version_of(update.level)}"
        )
    return replace(levels, protocol=update.level)


def _tombstone_values(levels: Levels, update: Update, _: Mapping[int, int]) -> Levels:
    """Down again is safe: what is stored stays what it is."""
    _check(update, levels.tombstone_values, 0, 1)
    return replace(levels, tombstone_values=update.level)


def _group_version(levels: Levels, update: Update, _: Mapping[int, int]) -> Levels:
    if update.level != _GROUP_LEVEL:
        raise _refused(f"{GROUP_VERSION} is always at {_GROUP_LEVEL}")
    return levels


def _unknown(_levels: Levels, update: Update, _: Mapping[int, int]) -> Levels:
    known = ", ".join(one.name for one in SUPPORTED_FEATURES)
    raise _refused(f"there is no feature {update.feature!r}; known are {known}")


_UPDATES = {
    PROTOCOL_VERSION: _protocol,
    TOMBSTONE_VALUES: _tombstone_values,
    GROUP_VERSION: _group_version,
}


def _check(update: Update, now: int, least: int, most: int) -> None:
    if not least <= update.level <= most:
        raise _refused(f"{update.feature}={update.level}: allowed is {least} to {most}")
    if update.level < now and update.way is Way.UPGRADE:
        raise _refused(f"{update.feature} is at {now}: {update.level} would be a downgrade")
    if update.level > now and update.way is not Way.UPGRADE:
        raise _refused(f"{update.feature} is at {now}: {update.level} would be an upgrade")


def _refused(words: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, words)


# --- as stored ------------------------------------------------------------------------------------


class _Stored(msgspec.Struct, frozen=True):
    protocol: int
    tombstone_values: int
    epoch: int


def encoded_levels(levels: Levels) -> bytes:
    """As they are stored: JSON."""
    return msgspec.json.encode(_Stored(levels.protocol, levels.tombstone_values, levels.epoch))


def decoded_levels(data: bytes | str, path: str) -> Levels:
    """The inverse; raises CorruptData."""
    try:
        found = from_json(data, _Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CorruptData(path, 0, str(e)) from e
    if found.protocol < 1 or found.tombstone_values < 0:
        raise CorruptData(path, 0, f"levels that cannot be: {found}")
    return Levels(found.protocol, found.tombstone_values, found.epoch)
