"""Holds our settings' defaults against Kafka's own, and tells where and why they depart.

Kafka's are in `tests/golden/kafka-defaults.json`, which a run of its classes writes
(`tests/oracle/test_defaults.py`); the reasons are in `tests/compat/defaults.toml`.
`tools/compatibility_doc` makes tables of what is found.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lapse.base.config import BROKER_SETTINGS, TOPIC_SETTINGS
from lapse.base.setting import Setting

ROOT = Path(__file__).resolve().parent.parent
KAFKAS = ROOT / "tests" / "golden" / "kafka-defaults.json"
REASONS = ROOT / "tests" / "compat" / "defaults.toml"
OWN_PREFIX = "lapse."

Defaults = Mapping[str, str | None]  # by name, as text; None where there is none


@dataclass(frozen=True)
class Kafkas:
    """What Kafka's definitions say; `internal` are a broker's that it documents nowhere."""

    topic: Defaults
    broker: Defaults
    internal: Defaults


@dataclass(frozen=True)
class Reasons:
    """`defaults.toml`; keys of `absent_…` are names or patterns."""

    departures: Mapping[str, str]
    own: Mapping[str, str]
    absent_topic: Mapping[str, str]
    absent_broker: Mapping[str, str]


@dataclass(frozen=True)
class Departure:
    """A setting of both with another default here; "" is none."""

    name: str
    kafkas: str
    ours: str
    reason: str


def read_kafkas(path: Path = KAFKAS) -> Kafkas:
    """Read the file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Kafkas(found["topic"], found["broker"], found["internal"])


def read_reasons(path: Path = REASONS) -> Reasons:
    """Read the file."""
    rows: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    absent = rows["absent"]
    return Reasons(rows["departures"], rows["own"], absent["topic"], absent["broker"])


def departures(kafkas: Kafkas, reasons: Reasons) -> list[Departure]:
    """Settings of both whose defaults are not the same, in the table's order."""
    found = []
    for setting, theirs in _of_both(kafkas):
        if not _same(setting, theirs):
            reason = reasons.departures.get(setting.name, "")
            found.append(Departure(setting.name, theirs or "", setting.default, reason))
    return found


def complaints(kafkas: Kafkas, reasons: Reasons) -> Iterator[str]:
    """One line for each setting that nothing is said of, and each row that says it in vain."""
    found = {one.name: one for one in departures(kafkas, reasons)}
    for one in found.values():
        if not one.reason:
            yield f"{one.name} is {one.ours!r}, in Kafka {one.kafkas!r}, and no reason is given"
    yield from (f"{name} departs no more" for name in reasons.departures if name not in found)
    both = {setting.name for setting, _ in _of_both(kafkas)}
    for name in sorted({s.name for s in (*TOPIC_SETTINGS, *BROKER_SETTINGS)} - both):
        if not name.startswith(OWN_PREFIX) and name not in reasons.own:
            yield f"{name} is not Kafka's, and nothing says whose"
    yield from (f"{name} is Kafka's after all" for name in reasons.own if name in both)
    yield from _synonyms(kafkas)
    yield from _absent("topic", absent_topic(kafkas), reasons.absent_topic)
    yield from _absent("broker", absent_broker(kafkas), reasons.absent_broker)


def absent_topic(kafkas: Kafkas) -> list[str]:
    """Topic settings that only Kafka has."""
    return sorted(kafkas.topic.keys() - {s.name for s in TOPIC_SETTINGS})


def absent_broker(kafkas: Kafkas) -> list[str]:
    """Broker settings that only Kafka has."""
    ours = {s.name for s in BROKER_SETTINGS}
    ours |= {name for s in TOPIC_SETTINGS for name, _ in s.synonyms}
    return sorted((kafkas.broker.keys() | kafkas.internal.keys()) - ours)


def _absent(kind: str, names: Sequence[str], rows: Mapping[str, str]) -> Iterator[str]:
    for name in names:
        if not any(fnmatchcase(name, pattern) for pattern in rows):
            yield f"{name}, a {kind} setting of Kafka's, is not here, and nothing is said of it"
    for pattern in rows:
        if not any(fnmatchcase(name, pattern) for name in names):
            yield f"{pattern}: there is no such {kind} setting that is not here"


def _of_both(kafkas: Kafkas) -> Iterator[tuple[Setting, str | None]]:
    tables: Iterable[tuple[Sequence[Setting], Defaults]] = (
        (TOPIC_SETTINGS, kafkas.topic),
        (BROKER_SETTINGS, {**kafkas.broker, **kafkas.internal}),
    )
    for settings, theirs in tables:
        yield from ((s, theirs[s.name]) for s in settings if s.name in theirs)


def _synonyms(kafkas: Kafkas) -> Iterator[str]:
    """A topic setting's broker names, where Kafka gives them a default, come to the topic's."""
    for setting in TOPIC_SETTINGS:
        for name, factor in setting.synonyms:
            theirs = kafkas.broker.get(name)
            if theirs is None:
                continue
            came = theirs if factor == 1 else str(int(theirs) * factor)
            if not _same(setting, came):
                yield f"{name} is {theirs} in Kafka, {setting.name} is {setting.default!r} here"


def _same(setting: Setting, theirs: str | None) -> bool:
    """By what the texts mean: lists of pairs have no order, and none is as good as empty."""
    ours = setting.default
    if ":" in ours and "," in ours:
        return set(ours.split(",")) == set((theirs or "").split(","))
    return ours == (theirs or "")
