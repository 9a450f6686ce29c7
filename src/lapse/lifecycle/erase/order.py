"""An order to erase keys: what must be stored of it from the moment it is given until the proof.

It is one file in a separate folder. It has no key, only salted hashes, and is written before
anything is done, so that a process that was killed can go on with the same order: the same bounds,
the same deadline, and the changed settings to put back.

**Bounds.** An order is about records below where the logs ended when it was given. Records written
later stay, for example of a person who came back. So a key gets a tombstone only where its newest
record is a value below the bound: not where it is a tombstone already, nor a newer value.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, ConfigError, StorageError, unreadable
from lapse.base.fs import Fs, make_lasting_dir
from lapse.base.ids import TopicPartition
from lapse.base.secret import Secret
from lapse.base.times import UNITS_MS, after_ms
from lapse.lifecycle.erase.findings import Count
from lapse.lifecycle.erase.proof import GONE, REMAINS, Verdict
from lapse.lifecycle.erase.replicas import ReplicaFindings, Sort
from lapse.lifecycle.erase.search import Bound, KeyHash, SearchSpec, hash_of
from lapse.log.lock import LOCK, lock_file
from lapse.log.segment import LOG, base_offset_of

FORMAT = "lapse-erasure-order-1"
ORDER_FILE = "order.json"
_AGE = re.compile(r"(\d{1,9})([dhms])")


@dataclass(frozen=True, slots=True)
class Forced:
    """A setting of a topic that was changed so that rounds come soon.

    Attributes:
        before: the value that the topic itself had set, None if it had none.
        value: what it was set to.
    """

    name: str
    before: str | None
    value: str


@dataclass(frozen=True, slots=True)
class TopicOrder:
    """What is to be erased of one topic.

    Attributes:
        topic_id: hexadecimal; the same name with another id is another topic.
        keys: hashed with the order's salt.
        bounds: where each partition ended.
        forced: a setting that is to be put back.
        values_proven_ms, proven_ms: since when it is proven that the values are gone, and that the
            tombstones are too; None: not yet. Older order files have neither.
        seen: the keys of which a file had anything since the order was given; None: it was not
            noted.
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
        """A copy with the keys of these numbers added to `seen`."""
        if self.seen is None:
            return self
        known = set(self.seen)
        more = [self.keys[n] for n in sorted(numbers) if self.keys[n] not in known]
        return replace(self, seen=(*self.seen, *more)) if more else self

    @property
    def never_seen(self) -> tuple[int, ...]:
        """Numbers of the keys of which no file had anything."""
        if self.seen is None:
            return ()
        known = set(self.seen)
        return tuple(n for n, key in enumerate(self.keys) if key not in known)

    def since_ms(self, *, tombstones_too: bool) -> int | None:
        """Since when it is proven."""
        return self.proven_ms if tombstones_too else self.values_proven_ms

    def noted(self, state: str, values: int, ended_ms: int, *, tombstones_too: bool) -> TopicOrder:
        """A copy that takes in a look's verdict and the number of values it found.

        The time of the first proof counts, unless a later look found again what it proved gone.
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
    """An order as it is stored.

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
        """The order's part about this topic, None if there is none."""
        return next((one for one in self.topics if one.topic == name), None)

    def with_topic(self, changed: TopicOrder) -> Order:
        """The order with that part added, or in place of the topic's present part."""
        if self.topic(changed.topic) is None:
            return replace(self, topics=(*self.topics, changed))
        topics = (changed if one.topic == changed.topic else one for one in self.topics)
        return replace(self, topics=tuple(topics))


@contextlib.contextmanager
def locked(fs: Fs, folder: Path) -> Iterator[None]:
    """Lock the folder, made if need be: two processes would undo each other's settings.

    It is made durably, because it has the settings' former values.

    Raises LockHeld, naming the holder, and StorageError.
    """
    make_lasting_dir(fs, folder)
    with contextlib.closing(lock_file(folder / LOCK, fs)):
        yield


def load_order(folder: Path) -> Order | None:
    """The order in a folder, None if there is none. Raises StorageError."""
    path = folder / ORDER_FILE
    try:
        order = from_json(path.read_bytes(), Order)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise unreadable(e, path) from e
    except NOT_JSON as e:
        raise StorageError(f"{path}: no order of erasure: {e}") from e
    if order.format != FORMAT:
        raise StorageError(f"{path}: format {order.format!r}; this version reads {FORMAT}")
    return order


def save_order(fs: Fs, folder: Path, order: Order) -> None:
    """Write the order durably and atomically, readable by its owner only. Raises StorageError.

    Anyone with the salt and the hashes could try keys until one matches.
    """
    fs.replace_file(folder / ORDER_FILE, Secret(msgspec.json.encode(order).decode()))


def require_same(order: Order, keys: Mapping[str, Sequence[bytes]], folder: Path) -> None:
    """Raise ConfigError unless the order is about exactly these keys.

    An order whose writing was cut short has only some of the topics; the others are added.
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
    """Tombstones for keys whose newest record in a partition is a value older than the order.

    A transaction may abort: a value in one counts all the same, a tombstone does not.
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
        and count.last_later < 0  # else what is to go is superseded already
    )


def _live_counts(replicas: Iterable[ReplicaFindings]) -> Iterable[tuple[int, Count]]:
    """Counts of the log's present segments, not of segments being deleted or not in use yet."""
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

    `expected`: each partition's brokers. A directory counts once, no matter how many paths lead to
    it; a broker counts once; a directory of a broker without a replica does not count. A directory
    that cannot be listed may have all of them.
    """
    missing = []
    for partition, nodes in sorted(expected.items()):
        number, folder = max(len(nodes), 1), f"{topic}-{partition}"
        here = _distinct(replicas, folder, nodes)
        if here < number:
            brokers = f" (on brokers {', '.join(map(str, sorted(nodes)))})" if nodes else ""
            missing.append(
                f"{folder} has {number} replicas{brokers}, and {here} of the given directories "
                "have it"
            )
    return missing


def _distinct(replicas: Iterable[ReplicaFindings], folder: str, nodes: Sequence[int]) -> int:
    """How many replicas of a partition were given, at least."""
    number, seen = 0, set[tuple[int, ...]]()
    for replica in replicas:
        if replica.sort is not Sort.LOGS:
            continue
        home = next((one for one in replica.homes if one.folder == folder), None)
        if home is None:
            number += replica.problem is not None
            continue
        node = replica.node_id
        ids = {(home.device, home.inode), *([(node,)] if node is not None else [])}
        if ids & seen or (node is not None and nodes and node not in nodes):
            continue
        if node is None and nodes and set(nodes) <= set(home.others):
            continue  # it counts all of them among the others: it is none of theirs
        number += 1
        seen |= ids
    return number


@dataclass(frozen=True, slots=True)
class Left:
    """What is still there: numbers of records with a value and of tombstones, and the doubts."""

    values: int
    tombstones: int
    reasons: tuple[str, ...]

    def text(self) -> str:
        """As text on one line."""
        if not self.values and not self.tombstones:
            return "nothing remains" + (f", but {self.reasons[0]}" if self.reasons else "")
        return f"{self.values} records and {self.tombstones} tombstones remain"


def what_is_left(counts: Mapping[int, Count], spec: SearchSpec, verdict: Verdict) -> Left:
    """What is left, from the totals of a look and its verdict."""
    values = sum(count.records for count in counts.values())
    tombstones = sum(count.tombstones for count in counts.values()) if spec.tombstones_too else 0
    return Left(values, tombstones, verdict.reasons)


# --- time -----------------------------------------------------------------------------------------


def counts_from_now(deadline: str) -> bool:
    """Whether a deadline is one such as 30d, which is another moment whenever it is read."""
    return _AGE.fullmatch(deadline) is not None


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
