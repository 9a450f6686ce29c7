"""`lapse erase` by its driver, with brokers that are the log at hand; what it left, looked at.

What the driver asks of brokers happens here and now: tombstones are appended, and the setting it
changes is a file of theirs. While it waits, its clock has a broker and a round do their work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.client.settings import ConfigEntry
from lapse.lifecycle.erase.drive import Erasure, Places, Target, given
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.order import (
    FORMAT,
    Due,
    Forced,
    Order,
    load_order,
    locked,
    require_same,
    save_order,
)
from lapse.lifecycle.erase.proof import PROVEN, Report, decode_report
from lapse.lifecycle.erase.replicas import Sort
from lapse.lifecycle.erase.search import Bound, hash_of, make_search
from lapse.lifecycle.erase.served import MAX_LAG, Served
from lapse.lifecycle.erase.sign import unseal
from lapse.testing.clock import ManualClock

SALT = "5a" * 16
TOPIC_ID = "07" * 16
SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(32))
LONG_MS = 600_000  # for all rounds of an erasure, and more
_FOREVER = str((1 << 63) - 1)
_TOPICS_OWN, _DEFAULT = 1, 5


class Waiting(ManualClock):
    """Something is done while whoever has it sleeps."""

    def __init__(self, now_ms: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(now_ms)
        self.meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()


@dataclass(frozen=True)
class AtHand:
    """`drive.Brokers` for one partition.

    Attributes:
        setting: a file with the topic's own max.compaction.lag.ms; there is none where it has none.
        append: a tombstone of a key.
    """

    fs: Fs
    partition: TopicPartition
    setting: Path
    append: Callable[[str], None]

    def own(self) -> str | None:
        return (self.setting.read_text() or None) if self.setting.exists() else None

    def served(self, end_offset: int) -> Served:
        own, topic, number = self.own(), self.partition.topic, self.partition.partition
        source = _TOPICS_OWN if own else _DEFAULT
        entry = ConfigEntry(MAX_LAG, own or _FOREVER, source, False, False, 0, (), None)
        return Served(topic, TOPIC_ID, (Bound(number, end_offset),), {0: (0,)}, {MAX_LAG: entry})

    def replicas(self, topic: str, topic_id: str) -> Mapping[int, Sequence[int]]:
        assert (topic, topic_id) == (self.partition.topic, TOPIC_ID)
        return {0: (0,)}

    def write_tombstones(self, topic: str, keys: Sequence[bytes], due: Sequence[Due]) -> None:
        assert topic == self.partition.topic
        for one in due:
            self.append(keys[one.target].decode())

    def force(self, topic: str, forced: Forced) -> bool:
        assert topic == self.partition.topic
        if self.own() not in {forced.before, forced.value}:
            return False
        self.fs.replace_file(self.setting, forced.value.encode())
        return True

    def put_back(self, topic: str, forced: Forced) -> bool:
        assert topic == self.partition.topic
        if self.own() != forced.value:
            return self.own() == forced.before
        self.fs.replace_file(self.setting, (forced.before or "").encode())
        return True


def erase(
    folder: Path, data: Path, key: bytes, answer: Served, brokers: AtHand, fs: Fs, clock: Waiting,
    accepted: Callable[[], None],
) -> str:  # fmt: skip
    """As `lapse erase` does it, for the first time or again; the verdict, once that is kept."""
    with locked(fs, folder):
        before = load_order(folder)
        order = before or Order(FORMAT, SALT, clock.now_ms(), None, ())
        require_same(order, {answer.topic: [key]}, folder)
        order = given(order, [answer], {answer.topic: [key]})
        search = make_search([key], tombstones_too=True)
        run = InlineAudits(search, clock, lambda _: None, threads=1)
        [part] = order.topics
        target = Target(part, (key,), search, SALT, run)
        places = Places(((str(data), Sort.LOGS),))
        erasure = Erasure(brokers, order, [target], places, clock)
        erasure.look(target)
        save_order(fs, folder, erasure.order)
        accepted()
        until_ms = clock.now_ms() + LONG_MS
        erasure.run(fs, folder, lambda _: None, until_ms=until_ms, lags={answer.topic: answer})
        erasure.end(fs, folder, SIGNING)
    assert target.last is not None
    return target.last.verdict.state


def reports(folder: Path) -> list[Report]:
    """The finished ones, each as it was signed."""
    found = sorted(folder.glob("*.proof*.json"))
    return [decode_report(unseal(p.read_bytes(), p.name).body, p.name) for p in found]


def require_kept(folder: Path, key: bytes, bound: int) -> None:
    """An order that was accepted: that of this key, below this offset."""
    order = load_order(folder)
    assert order is not None
    [part] = order.topics
    assert part.keys == (hash_of(key, order.salt),)
    assert part.bounds == (Bound(0, bound),)


def require_put_back(folder: Path, brokers: AtHand) -> None:
    """The setting is as it was, or the order knows what it was."""
    order = load_order(folder)
    forced = None if order is None else order.topics[0].forced
    assert brokers.own() is None or (forced is not None and forced.before is None)


def require_first_proof_counts(folder: Path) -> None:
    """What was once proven is not proven later by running again."""
    order, proven = load_order(folder), [r for r in reports(folder) if r.verdict.state == PROVEN]
    if proven:
        assert order is not None
        since_ms = order.topics[0].since_ms(tombstones_too=True)
        assert since_ms is not None
        assert since_ms <= min(report.ended_ms for report in proven)
