"""Feature levels: who may raise which, what each allows, and what passes for levels."""

from __future__ import annotations

import pytest

from lapse.base.config import settled_config
from lapse.base.errors import ConfigError, CorruptData, ErrorCode, KafkaError
from lapse.metadata.features import (
    ALL,
    Levels,
    Update,
    Way,
    agreed,
    decoded_levels,
    encoded_levels,
    require_fit,
    updated,
)
from lapse.wire.versions import GROUP_VERSION, PROTOCOL_VERSION, TOMBSTONE_VALUES

OLD = Levels(1, 0, 4)
BROKERS = {1: 3, 2: 3, 3: 3}


def protocol(level: int, way: Way = Way.UPGRADE) -> Update:
    return Update(PROTOCOL_VERSION, level, way)


def values(level: int, way: Way = Way.UPGRADE) -> Update:
    return Update(TOMBSTONE_VALUES, level, way)


@pytest.mark.parametrize(
    ("level", "fmt"), [(1, 0), (2, 1), (3, 2)], ids=["before KIP-32", "KIP-32", "KIP-107"]
)
def test_a_level_caps_the_format_and_whether_a_tombstone_keeps_its_value(
    level: int, fmt: int
) -> None:
    asked = {"lapse.tombstone.values.enable": "true"}
    config, _ = settled_config(asked, None, Levels(level, 0).caps)
    assert (config.message_format_version, config.tombstone_values_enable) == (fmt, False)
    assert Levels(level).has_deletions is (level == 3)


def test_a_level_never_raises_what_a_setting_says() -> None:
    config, _ = settled_config({"message.format.version": "0.9.0"}, None, ALL.caps)
    assert (config.message_format_version, config.tombstone_values_enable) == (0, False)
    asked = {"lapse.tombstone.values.enable": "true"}
    assert settled_config(asked, None, ALL.caps)[0].tombstone_values_enable is True


@pytest.mark.parametrize(
    ("protocols", "reached"),
    [((3, 3, 3), 3), ((3, 1, 3), None), ((2, 3), 2), ((1,), None), ((9, 9), 3)],
)
def test_all_go_as_far_as_all_may(protocols: tuple[int, ...], reached: int | None) -> None:
    expected = None if reached is None else Levels(reached, 0, 5)
    assert agreed(OLD, protocols) == expected
    assert agreed(ALL, protocols) is None, "levels never go back"


def test_a_new_cluster_goes_as_far_as_its_first_broker_may() -> None:
    assert [Levels.first(n) for n in (1, 2, 3)] == [Levels(1, 0), Levels(2, 0), ALL]


@pytest.mark.parametrize(
    ("levels", "update", "words"),
    [
        (OLD, Update("metadata.version", 20), "there is no feature 'metadata.version'"),
        (OLD, protocol(4), "allowed is 1 to 3"),
        (OLD, protocol(0), "allowed is 1 to 3"),
        (ALL, protocol(2, Way.UNSAFE_DOWNGRADE), "never goes back"),
        (ALL, protocol(2), "would be a downgrade"),
        (OLD, protocol(2, Way.SAFE_DOWNGRADE), "would be an upgrade"),
        (OLD, values(1), "lapse.tombstone.values needs lapse.protocol.version=3; it is at 1"),
        (ALL, values(0), "would be a downgrade"),
        (ALL, values(2), "allowed is 0 to 1"),
        (ALL, Update(GROUP_VERSION, 0, Way.SAFE_DOWNGRADE), "always at 1"),
    ],
)
def test_what_no_request_may_change(levels: Levels, update: Update, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as refused:
        updated(levels, [update], BROKERS)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_who_holds_a_level_back_is_named() -> None:
    with pytest.raises(KafkaError, match=r"of broker 1, 3 is before 0\.11\.0"):
        updated(OLD, [protocol(3)], {1: 2, 2: 3, 3: 1})
    assert updated(OLD, [protocol(2)], {1: 2, 2: 3}) == Levels(2, 0, 5)


def test_a_request_is_in_force_as_a_whole() -> None:
    both = [values(1), protocol(3)]
    assert updated(OLD, both, BROKERS) == Levels(3, 1, 5)
    assert updated(OLD, reversed(both), BROKERS) == Levels(3, 1, 5)
    with pytest.raises(KafkaError, match="named twice") as refused:
        updated(OLD, [protocol(2), protocol(3)], BROKERS)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("way", [Way.SAFE_DOWNGRADE, Way.UNSAFE_DOWNGRADE])
def test_values_of_tombstones_may_be_refused_again(way: Way) -> None:
    assert updated(ALL, [values(0, way)], BROKERS) == Levels(3, 0, 1)


def test_what_is_so_already_is_no_change() -> None:
    assert updated(ALL, [values(1), protocol(3), Update(GROUP_VERSION, 1)], BROKERS) is ALL


def test_who_lags_behind_is_told_what_to_set() -> None:
    require_fit(OLD, 1)
    require_fit(ALL, 3)
    with pytest.raises(ConfigError, match=r"inter\.broker\.protocol\.version: allowed is 0\.11\.0"):
        require_fit(ALL, 2)
    for newer in (Levels(4), Levels(3, 2)):
        with pytest.raises(ConfigError, match="a newer Lapse has raised"):
            require_fit(newer, 3)


def test_finalized_is_what_is_above_0() -> None:
    assert [(one.name, one.max_version_level) for one in OLD.finalized] == [
        (GROUP_VERSION, 1),
        (PROTOCOL_VERSION, 1),
    ]
    assert [one.name for one in ALL.finalized] == [
        GROUP_VERSION,
        PROTOCOL_VERSION,
        TOMBSTONE_VALUES,
    ]


def test_levels_as_they_are_stored() -> None:
    for levels in (OLD, ALL):
        assert decoded_levels(encoded_levels(levels), "/features") == levels
    whole = encoded_levels(ALL)
    cut = [whole[:at] for at in range(len(whole))]
    for damaged in (*cut, b"[]", b'{"protocol":0,"tombstone_values":0,"epoch":0}', b"\xff"):
        with pytest.raises(CorruptData, match="/features"):
            decoded_levels(damaged, "/features")
