"""A report checked against what is there now: what is as it was, what is not, and what follows.

Files that have the bytes they had (by size and checksum) keep what was found in them; others are
looked through anew, if the keys were given again: a report does not tell them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.clock import Clock
from lapse.lifecycle.erase.audit import OnBytes
from lapse.lifecycle.erase.findings import KEYLESS, AuditUnit, Findings, Piece
from lapse.lifecycle.erase.places import Place
from lapse.lifecycle.erase.proof import Report, Verdict, judge, keys_seen, with_never_seen
from lapse.lifecycle.erase.replicas import ReplicaFindings, Run, Where, look_through
from lapse.lifecycle.erase.window import Window

NOT_SEARCHED = "was not looked through: it is not as it was, and its keys were not given"


@dataclass(frozen=True, slots=True)
class Difference:
    """How a file, or a whole replica, differs from what the report says."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check came to.

    Attributes:
        replicas: findings as of now. verdict: what follows from them.
        as_it_was: how many files have the bytes they had.
    """

    replicas: tuple[ReplicaFindings, ...]
    verdict: Verdict
    differences: tuple[Difference, ...]
    as_it_was: int


def check(
    report: Report, run: Run | None, clock: Clock, on_bytes: OnBytes,
    moved: Sequence[str] = (),
) -> Checked:  # fmt: skip
    """Compare and, with `run` (which knows the keys), look through what changed.

    `moved` are the replicas' directories now, in the report's order; none: where they were.
    """
    paths = list(moved) or [replica.path for replica in report.replicas]
    replicas, differences, same = [], [], 0
    for before, path in zip(report.replicas, paths, strict=True):
        where = Where(
            path, report.topic, report.partition, before.scratch, report.asked.bounds,
            report.asked.topic_id,
        )  # fmt: skip
        now, told, unchanged = _replica(before, where, run, clock, on_bytes)
        replicas.append(now)
        differences += told
        same += unchanged
    verdict = judge(replicas, report.asked, report.topic)
    keys = len(report.asked.keys)
    unseen = set(report.verdict.never_seen) - keys_seen(replicas, keys)
    verdict = with_never_seen(verdict, sorted(unseen), keys)
    return Checked(tuple(replicas), verdict, tuple(differences), same)


def _replica(
    before: ReplicaFindings, where: Where, run: Run | None, clock: Clock, on_bytes: OnBytes
) -> tuple[ReplicaFindings, list[Difference], int]:
    listing = where.listed()
    if listing.problem is not None:
        told = [Difference(where.path, listing.problem)]
        return ReplicaFindings(where.path, where.scratch, listing.problem), told, 0
    there = {place.path: place for place in listing.places}
    known: dict[str, Findings] = {}
    differences: list[Difference] = []
    for found in before.files:
        place = there.get(found.path)
        now, what = _compared(found, place, where.path, on_bytes)
        if now is not None:
            known[found.path] = now
        if what is not None:
            differences.append(Difference(f"{where.path}/{found.path}", what))
    told_of = {found.path for found in before.files}
    differences += [
        Difference(f"{where.path}/{path}", "new") for path in there if path not in told_of
    ]
    seen = look_through(where, run or _not_searched, clock, known.values())
    unchanged = sum(found.path in known for found in before.files)
    return seen, differences, unchanged


def _not_searched(units: Sequence[AuditUnit]) -> Iterator[Findings]:
    """In place of a run, where nobody said which keys to look for."""
    for unit in units:
        yield Findings(unit.path, problem=NOT_SEARCHED)


def _compared(
    found: Findings, place: Place | None, replica: str, on_bytes: OnBytes
) -> tuple[Findings | None, str | None]:
    """What still holds of a file, and how it differs; neither: it could not be read before."""
    if place is None:
        return None, "gone"
    if found.kind == KEYLESS:
        return None, None  # looked at anew, by its name: that costs nothing
    if found.problem is not None or place.state is None or place.problem is not None:
        return None, "could not be read then, or cannot be now"
    state = found.state
    if place.state.size < found.end or state is None:
        return None, "changed: it is shorter"
    if not _has_bytes(Path(replica) / found.path, found.pieces, on_bytes):
        return None, "changed"
    if place.state.size > found.end:
        return None, f"longer by {place.state.size - found.end} bytes"
    same = (state.size, state.mtime_ns, state.inode) == (
        place.state.size, place.state.mtime_ns, place.state.inode
    )  # fmt: skip
    return replace(found, state=place.state), None if same else "touched: the bytes are the same"


def _has_bytes(path: Path, pieces: Iterable[Piece], on_bytes: OnBytes) -> bool:
    """Whether a file has the bytes it had, by their checksums."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return all(_has_piece(fd, piece, on_bytes) for piece in pieces)
    except OSError:
        return False
    finally:
        os.close(fd)


def _has_piece(fd: int, piece: Piece, on_bytes: OnBytes) -> bool:
    window = Window(fd, piece.start, piece.end)
    while window.reach < window.end:
        before = window.reach
        window.fill(before)
        on_bytes(window.reach - before)
    return window.end == piece.end and int(window.crc) == piece.crc32c
