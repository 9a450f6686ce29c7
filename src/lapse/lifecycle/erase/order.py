"""An order to erase keys, from the moment it is given until a proof: what of it must be remembered.

One file in a folder of the order's own. It has no key, only salted hashes, and is written before
anything is done, so that whoever is killed goes on with the same order: the same bounds, the same
deadline, and the settings put back that were changed.

**Bounds.** An order is about records below where the logs ended when it was given. What was written
later, by somebody who came back, stays. So a key gets a tombstone only where its newest record is a
value below the bound: not where a tombstone is there already, nor where a newer value is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import Fs, make_lasting_dir
from lapse.base.ids import TopicPartition
from lapse.base.secret import Secret
from lapse.base.times import UNITS_MS, after_ms
from lapse.lifecycle.erase.findings import Count
from lapse.lifecycle.erase.proof import GONE, REMAINS, Verdict
from lapse.lifecycle.erase.replicas import ReplicaFindings
from lapse.lifecycle.erase.search import Bound, KeyHash, SearchSpec, hash_of
from lapse.log.directory import LOCK, lock_file
from lapse.log.segment import LOG, base_offset_of

FORMAT = "lapse-erasure-order-1"
ORDER_FILE = "order.json"
_AGE = re.compile(r"(\d{1,9})([dhms])")


@dataclass(frozen=True, slots=True)
class Forced:
    """A setting of a topic that was changed so that rounds come soon.

    Attributes:
        before: the topic's own value, None where it had none.
        value: what it was set to.
    """

    name: str
    before: str | None
    value: str


@dataclass(frozen=True, slots=True)
class TopicOrder:
    """What is to be erased of one topic.

    Attributes:
        topic_id: hexadecimal; another one of the same name is another topic.
        keys: by the order's salt.
        bounds: where each partition ended.
        forced: a setting that is to be put back.
        values_proven_ms, proven_ms: since when it is proven that the values are gone, and that the
            tombstones are too; None: not yet. Order files of before have neither.
        seen: which of the keys a file had anything of, from the order on; None: it was not noted.
    """

    topic: str
    topic_id: str
    keys: tuple[KeyHash, ...]
    bounds: tuple[Bound, ...]
    forced: Forced | None = None
    values_proven_ms: int | None = None
    proven_ms: int | None = None
    seen: tuple[KeyHash, ...] | None = None

    def having_seen(self, numbers: Iterable[int]) -> TopicOrder:
        """With these of `keys` among the ones that were seen."""
        if self.seen is None:
            return self
        known = set(self.seen)
        more = [self.keys[n] for n in sorted(numbers) if self.keys[n] not in known]
        return replace(self, seen=(*self.seen, *more)) if more else self

    @property
    def never_seen(self) -> tuple[int, ...]:
        """Numbers of keys that no file had anything of."""
        if self.seen is None:
            return ()
        known = set(self.seen)
        return tuple(n for n, key in enumerate(self.keys) if key not in known)

    def since_ms(self, *, tombstones_too: bool) -> int | None:
        """Since when it is proven."""
        return self.proven_ms if tombstones_too else self.values_proven_ms

    def noted(self, state: str, values: int, ended_ms: int, *, tombstones_too: bool) -> TopicOrder:
        """With a look's verdict, and how many values it found.

        The first proof counts, unless what it says was found again by a later look.
        """
        values_ms, all_ms = self.values_proven_ms, self.proven_ms
        if state == REMAINS:
            return replace(self, values_proven_ms=None if values else values_ms, proven_ms=None)
        if state in GONE:
            values_ms = ended_ms if values_ms is None else values_ms
            all_ms = ended_ms if all_ms is None and tombstones_too else all_ms
        return replace(self, values_proven_ms=values_ms, proven_ms=all_ms)


@dataclass(frozen=True, slots=True)
class Order:
    """An order as it is kept.

    Attributes:
        salt: hexadecimal.
        deadline_ms: by when it must be proven; None: no matter when.
    """

    format: str
    salt: str
    given_ms: int
    deadline_ms: int | None
    topics: tuple[TopicOrder, ...]

    def topic(self, name: str) -> TopicOrder | None:
        """Its part of a topic, if it is about it."""
        return next((one for one in self.topics if one.topic == name), None)

    def with_topic(self, changed: TopicOrder) -> Order:
        """The order with that part in place of the one it has, or added."""
        if self.topic(changed.topic) is None:
            return replace(self, topics=(*self.topics, changed))
        topics = (changed if one.topic == changed.topic else one for one in self.topics)
        return replace(self, topics=tuple(topics))


@contextmanager
def locked(fs: Fs, folder: Path) -> Iterator[None]:
    """The folder, made if need be, for one process alone: two would undo each other's settings.

    Durably made: with it would go what settings were before.

    Raises LockHeld, naming who has it, and StorageError.
    """
    make_lasting_dir(fs, folder)
    lock = lock_file(folder / LOCK, fs)
    try:
        yield
    finally:
        lock.close()


def load_order(folder: Path) -> Order | None:
    """The order in a folder, None if there is none. Raises StorageError."""
    path = folder / ORDER_FILE
    try:
        order = msgspec.json.decode(path.read_bytes(), type=Order)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StorageError(f"reading {path}: {e.strerror or e}") from e
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise StorageError(f"{path}: no order of erasure: {e}") from e
    if order.format != FORMAT:
        raise StorageError(f"{path}: format {order.format!r}; this version reads {FORMAT}")
    return order


def save_order(fs: Fs, folder: Path, order: Order) -> None:
    """Durably, whole or not at all, for its owner alone. Raises StorageError.

    Whoever has salt and hashes can try keys until one fits.
    """
    fs.replace_file(folder / ORDER_FILE, Secret(msgspec.json.encode(order).decode()))


def require_same(order: Order, keys: Mapping[str, Sequence[bytes]], folder: Path) -> None:
    """Raise ConfigError unless the order is about exactly these keys.

    An order that was cut short while it was written has some of the topics; the rest is added.
    """
    for part in order.topics:
        if part.topic not in keys:
            raise ConfigError(f"{folder}: that order is about topic {part.topic}, too")
        given = {hash_of(key, order.salt) for key in keys[part.topic]}
        if given != set(part.keys):
            raise ConfigError(f"{folder}: that order is about other keys of topic {part.topic}")


# --- what is to be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """A tombstone that is to be written: key number `target` to this partition."""

    partition: int
    target: int


def tombstones_due(
    replicas: Iterable[ReplicaFindings], keys: int, bounds: Iterable[Bound]
) -> list[Due]:
    """Where the newest record of a key is a value that is older than the order.

    What a transaction has in it may be taken back: a value counts all the same, a tombstone not.
    """
    below = {bound.partition: bound.offset for bound in bounds}
    newest: dict[Due, Count] = {}
    for partition, count in _live_counts(replicas):
        if count.target < keys:
            due = Due(partition, count.target)
            newest[due] = newest.get(due, Count(count.target)) + count
    return sorted(
        due
        for due, count in newest.items()
        if count.last_tombstone < count.last_value < below.get(due.partition, 0)
    )


def _live_counts(replicas: Iterable[ReplicaFindings]) -> Iterable[tuple[int, Count]]:
    """What is in segments that the log consists of, not in those on their way out or in."""
    for replica in replicas:
        for found in replica.files:
            log = TopicPartition.parse(found.folder)
            name = found.path.removeprefix(f"{found.folder}/")
            if log is None or not name.endswith(LOG) or base_offset_of(name) is None:
                continue
            for count in found.counts:
                yield log.partition, count


def replicas_missing(
    replicas: Sequence[ReplicaFindings], topic: str, expected: Mapping[int, Sequence[int]]
) -> list[str]:
    """Partitions of which fewer directories were given than there are replicas, as sentences.

    `expected`: each partition's brokers. A directory counts once, whatever paths lead to it, a
    broker's once, and that of a broker which has no replica not at all. One that cannot be listed
    may have them.
    """
    told = []
    for partition, nodes in sorted(expected.items()):
        number, folder = max(len(nodes), 1), f"{topic}-{partition}"
        here = _distinct(replicas, folder, nodes)
        if here < number:
            brokers = f" (on brokers {', '.join(map(str, sorted(nodes)))})" if nodes else ""
            told.append(
                f"{folder} has {number} replicas{brokers}, and {here} of the given directories "
                "have it"
            )
    return told


def _distinct(replicas: Iterable[ReplicaFindings], folder: str, nodes: Sequence[int]) -> int:
    """How many replicas of a partition were given, at least."""
    number, seen = 0, set[tuple[int, ...]]()
    for replica in replicas:
        if replica.scratch:
            continue
        home = next((one for one in replica.homes if one.folder == folder), None)
        if home is None:
            number += replica.problem is not None
            continue
        node = replica.node_id
        who = {(home.device, home.inode), *([(node,)] if node is not None else [])}
        if who & seen or (node is not None and nodes and node not in nodes):
            continue
        number += 1
        seen |= who
    return number


@dataclass(frozen=True, slots=True)
class Left:
    """What is still there: records with a value, tombstones, and doubts (none of them counted)."""

    values: int
    tombstones: int
    reasons: tuple[str, ...]

    def told(self) -> str:
        """In a line."""
        if not self.values and not self.tombstones:
            return "nothing remains" + (f", but {self.reasons[0]}" if self.reasons else "")
        return f"{self.values} records and {self.tombstones} tombstones remain"


def what_is_left(counts: Mapping[int, Count], asked: SearchSpec, verdict: Verdict) -> Left:
    """From the totals of a look, and its verdict."""
    values = sum(count.records for count in counts.values())
    tombstones = sum(count.tombstones for count in counts.values()) if asked.tombstones_too else 0
    return Left(values, tombstones, verdict.reasons)


# --- time -----------------------------------------------------------------------------------------


def parse_deadline(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time with a zone, or of a time from now on such as 30d."""
    age = _AGE.fullmatch(text)
    if age is not None:
        return after_ms(now_ms, int(age[1]) * UNITS_MS[age[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            f"--deadline {text}: allowed is a time with a zone such as 2026-12-31T00:00:00Z, or "
            "one from now such as 30d, 12h, 90m, 45s"
        )
    return int(moment.timestamp() * 1000)
