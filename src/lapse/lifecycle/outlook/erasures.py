"""Orders of erasure in a folder: by when what is to be gone, what is proven, and the proofs.

Only looks, beside the `lapse erase` that may be at work on an order. What an order keeps of keys,
salted hashes, stays where it is: only their number is told. A proof, which has such hashes, too, is
handed out as it is; whose signature it has is for who gets it (`lapse prove-erased --check`).

Whoever gives orders writes to the folder, a broker reads there what it may read elsewhere, too: so
no link is followed from a file's name, and nothing is waited for.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, LapseError, StorageError, unreadable
from lapse.base.extras import needed_for
from lapse.lifecycle.erase.order import ORDER_FILE, Order, TopicOrder, load_order
from lapse.lifecycle.erase.proof import GONE
from lapse.log.lock import lock_holder

ORDERS_MAX = 500
PROOF_BYTES_MAX = 64 << 20  # of one that is handed out
REPORT_BYTES_MAX = 128 << 20  # of one that is read: a million keys
ORDER_BYTES_MAX = 512 << 20  # of an order: nearly three million
_PROOF = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)\.proof(-(?P<number>[0-9]{1,9}))?\.json")
_Key = tuple[int, int, int]  # of a file: it is read again when one of these has changed


@dataclass(frozen=True, slots=True)
class Proof:
    """A signed report of `lapse erase`, newest first in its topic.

    Attributes:
        verdict: as the report has it; empty where it cannot be read, or is not as it was signed.
        is_leaving_tombstones: whether tombstones might stay.
    """

    file: str
    size_bytes: int
    ended_ms: int
    verdict: str
    is_leaving_tombstones: bool


@dataclass(frozen=True, slots=True)
class TopicErasure:
    """What of one topic is to go.

    Attributes:
        keys: how many. never_seen: of how many no file ever had anything.
        values_gone_ms: since when it is proven that no value is left; None: it is not.
        done_ms: since when all is proven that was ordered; None: it is not.
        lowered: the setting that is lowered meanwhile, as `name=value`.
    """

    topic: str
    keys: int
    never_seen: int
    values_gone_ms: int | None
    done_ms: int | None
    lowered: str | None
    proofs: tuple[Proof, ...]


@dataclass(frozen=True, slots=True)
class Erasure:
    """One order.

    Attributes:
        broker: in whose folder it is.
        holder: the process that is at work on it, None if none is.
        trouble: why it cannot be read; then the rest is as it was read last, or empty.
        left_out: how many of its folder, all proven, are not told beside it.
    """

    order: str
    broker: int = -1
    given_ms: int = 0
    deadline_ms: int | None = None
    holder: int | None = None
    topics: tuple[TopicErasure, ...] = ()
    trouble: str = ""
    left_out: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it is known, and not proven; also while it cannot be read."""
        return bool(self.topics) and self.done_ms is None

    @property
    def done_ms(self) -> int | None:
        """Since when everything is proven; None: it is not."""
        times = [one.done_ms for one in self.topics]
        known = [ms for ms in times if ms is not None]
        return max(known) if known and len(known) == len(times) else None

    def overdue_ms(self, now_ms: int) -> int:
        """By how much the deadline is missed; 0: it is not, or there is none."""
        if self.deadline_ms is None:
            return 0
        done_ms = now_ms if self.done_ms is None else self.done_ms
        return max(done_ms - self.deadline_ms, 0)


class Erasures:
    """The orders of one folder; what has not changed is not read again. Fit for threads."""

    def __init__(self, folder: Path | None, broker: int) -> None:
        """`folder`: None where no orders are to be shown."""
        self._folder, self._broker = folder, broker
        self._lock = Lock()
        self._orders: dict[Path, tuple[_Key, _Order]] = {}  # by folder
        self._proofs: dict[Path, dict[str, tuple[_Key, Proof]]] = {}  # by folder and name
        self._last: dict[Path, Erasure] = {}  # by folder, as it was read last

    def all(self) -> list[Erasure]:
        """All orders, by urgency. Raises StorageError where the folder cannot be listed."""
        with self._lock:
            folders = self._folders()
            self._forget_all_but(set(folders))
            found = [self._seen(path) for path in folders]
        return sorted(found, key=urgency)

    def last(self) -> list[Erasure]:
        """All orders as they were read last, for while the folder cannot be listed."""
        with self._lock:
            return list(self._last.values())

    def seen(self) -> list[Erasure]:
        """What is to be shown, in order of urgency: of very many, the oldest proven are left out.

        What is open or cannot be read never is, however old: it may be late. Raises as `all`.
        """
        found = self.all()
        proven = [one for one in found if not one.trouble and one.done_ms is not None]
        count = min(max(len(found) - ORDERS_MAX, 0), len(proven))
        if not count:
            return found
        oldest = sorted(proven, key=lambda one: one.given_ms)[:count]
        gone = {one.order for one in oldest}
        return [replace(one, left_out=count) for one in found if one.order not in gone]

    def proof(self, file: str, topic: str) -> str | None:
        """The text of a proof of this topic, named `ORDER/FILE`; None where there is none.

        Raises StorageError where it cannot be read, or is larger than PROOF_BYTES_MAX.
        """
        order, _, name = file.partition("/")
        named = _PROOF.fullmatch(name)
        if named is None or named["topic"] != topic:
            return None
        with self._lock:
            folder = next((path for path in self._folders() if path.name == order), None)
        if folder is None:
            return None
        path = folder / name
        try:
            return _read(path, PROOF_BYTES_MAX).decode()
        except FileNotFoundError:
            return None
        except OSError as e:
            raise unreadable(e, path) from e
        except UnicodeDecodeError as e:
            raise StorageError(f"{path}: no proof of erasure: {e}") from e

    def _folders(self) -> list[Path]:
        if self._folder is None:
            return []
        try:
            with os.scandir(self._folder) as entries:
                found = [Path(e.path) for e in entries if e.is_dir() and _is_text(e.name)]
        except FileNotFoundError:
            return []
        except OSError as e:
            raise unreadable(e, self._folder) from e
        return sorted(path for path in found if _may_have_order(path))

    def _seen(self, folder: Path) -> Erasure:
        empty = Erasure(folder.name, self._broker)
        try:
            found = self._found(folder, empty)
        except LapseError as e:
            trouble = str(e)
        except OSError as e:
            trouble = str(unreadable(e, folder))
        else:
            self._last[folder] = found
            return found
        # Its deadline does not move because it cannot be read.
        return replace(self._last.get(folder, empty), holder=None, trouble=trouble)

    def _found(self, folder: Path, empty: Erasure) -> Erasure:
        order = self._order(folder)
        if order is None:
            raise StorageError(f"{folder / ORDER_FILE}: it is gone")
        proofs = self._proofs_of(folder)
        topics = tuple(_topic(part, proofs.get(part.topic, [])) for part in order.parts)
        holder = lock_holder(folder, follows_link=False)
        return replace(
            empty, given_ms=order.given_ms, deadline_ms=order.deadline_ms, holder=holder,
            topics=topics,
        )  # fmt: skip

    def _forget_all_but(self, folders: Set[Path]) -> None:
        for gone in self._orders.keys() - folders:
            del self._orders[gone]
        for gone in self._proofs.keys() - folders:
            del self._proofs[gone]
        for gone in self._last.keys() - folders:
            del self._last[gone]

    def _order(self, folder: Path) -> _Order | None:
        key = _key_of(folder / ORDER_FILE)
        kept = self._orders.get(folder)
        if kept is None or kept[0] != key:
            _require_size(folder / ORDER_FILE, key[1], ORDER_BYTES_MAX)
            order = load_order(folder)
            if order is None:
                return None
            kept = self._orders[folder] = (key, _kept_of(order))
        return kept[1]

    def _proofs_of(self, folder: Path) -> dict[str, list[Proof]]:
        numbered: dict[str, list[tuple[int, Proof]]] = {}
        known, found = self._proofs.get(folder, {}), dict[str, tuple[_Key, Proof]]()
        for path in folder.iterdir():
            named = _PROOF.fullmatch(path.name)
            if named is None:
                continue
            key = _key_of(path)
            kept = known.get(path.name)
            if kept is None or kept[0] != key:
                kept = (key, _proof(path, key[1]))
            found[path.name] = kept
            numbered.setdefault(named["topic"], []).append((int(named["number"] or 1), kept[1]))
        self._proofs[folder] = found
        return {
            topic: [proof for _, proof in sorted(some, key=_age)]
            for topic, some in numbered.items()
        }


def _age(numbered: tuple[int, Proof]) -> tuple[bool, int, int]:
    """The newest first: numbers may have been given again, after a report was put elsewhere.

    One that cannot be read may be the newest.
    """
    number, proof = numbered
    return bool(proof.verdict), -proof.ended_ms, -number


def _may_have_order(folder: Path) -> bool:
    """True for one that cannot be entered: that is to be told."""
    try:
        (folder / ORDER_FILE).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def urgency(one: Erasure) -> tuple[bool, bool, float, int]:
    """What cannot be read sorts first, then what is open, by its deadline."""
    deadline = float("inf") if one.deadline_ms is None else float(one.deadline_ms)
    return not one.trouble, one.done_ms is not None, deadline, -one.given_ms


class _Part(NamedTuple):
    """Of a topic's part of an order what is kept: not the hashes, there may be a million."""

    topic: str
    keys: int
    never_seen: int
    values_gone_ms: int | None
    all_gone_ms: int | None
    lowered: str | None


class _Order(NamedTuple):
    given_ms: int
    deadline_ms: int | None
    parts: tuple[_Part, ...]


def _kept_of(order: Order) -> _Order:
    return _Order(order.given_ms, order.deadline_ms, tuple(map(_part_of, order.topics)))


def _part_of(part: TopicOrder) -> _Part:
    lowered = None if part.forced is None else f"{part.forced.name}={part.forced.value}"
    return _Part(
        part.topic, len(part.keys), len(part.never_seen), part.values_proven_ms, part.proven_ms,
        lowered,
    )  # fmt: skip


def _topic(part: _Part, proofs: Sequence[Proof]) -> TopicErasure:
    """Done is what the newest proof says, since when the order says."""
    done_ms = None
    if proofs and proofs[0].verdict in GONE:
        done_ms = part.values_gone_ms if proofs[0].is_leaving_tombstones else part.all_gone_ms
    return TopicErasure(
        part.topic, part.keys, part.never_seen, part.values_gone_ms, done_ms, part.lowered,
        tuple(proofs),
    )  # fmt: skip


# --- of a report, the little that is told; the rest is not even parsed into objects ---------------


class _Asked(msgspec.Struct):
    tombstones_too: bool = True


class _Verdict(msgspec.Struct):
    state: str


class _Report(msgspec.Struct):
    ended_ms: int
    verdict: _Verdict
    asked: _Asked


def _proof(path: Path, size_bytes: int) -> Proof:
    """Raises MissingExtra: a broker can do without what checks a signature, and says so."""
    with needed_for("checking a proof of erasure"):
        from lapse.lifecycle.erase.sign import BadSeal, unseal  # noqa: PLC0415
    try:
        sealed = unseal(_read(path, REPORT_BYTES_MAX), str(path))
        found = from_json(sealed.body, _Report)
    except (OSError, StorageError, BadSeal, *NOT_JSON):
        return Proof(path.name, size_bytes, 0, "", is_leaving_tombstones=False)
    return Proof(
        path.name, size_bytes, found.ended_ms, found.verdict.state,
        is_leaving_tombstones=not found.asked.tombstones_too,
    )  # fmt: skip


# --- files in a folder that others write to -------------------------------------------------------


def _read(path: Path, bytes_max: int) -> bytes:
    """An ordinary file. Raises OSError, StorageError where it is something else, or too large."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as f:
        _require_ordinary(path, os.fstat(fd))
        data = f.read(bytes_max + 1)
    _require_size(path, len(data), bytes_max)
    return data


def _key_of(path: Path) -> _Key:
    found = path.lstat()
    _require_ordinary(path, found)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _require_size(path: Path, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise StorageError(f"{path}: larger than {bytes_max} bytes: take it from there")


def _require_ordinary(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{path}: no ordinary file")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
