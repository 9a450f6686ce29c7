"""Checks a report against the files of now: what is unchanged, what is not, and what follows.

**With its keys**, which a report does not contain, everything is searched again and hashed in the
same pass: only the report's questions are believed. Without them, files with unchanged bytes, by
SHA-256, keep their findings; other files are not searched. Reports of the first format named files
by CRC-32C: without the keys such a report proves nothing.

Files do not say everything: doubts that others gave stay, replicas that the brokers had are asked
for again, and a directory that is not the report's is no proof of what was in that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

from lapse.base.bucket import is_bucket
from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.kernels.crc32c import crc32c_more
from lapse.lifecycle.erase.audit import OnBytes
from lapse.lifecycle.erase.findings import KEYLESS, AuditUnit, Findings, Piece
from lapse.lifecycle.erase.objects import copied
from lapse.lifecycle.erase.order import replicas_missing
from lapse.lifecycle.erase.places import FileState
from lapse.lifecycle.erase.proof import (
    Report,
    Verdict,
    doubted,
    judge,
    keys_seen,
    with_never_seen,
)
from lapse.lifecycle.erase.replicas import (
    ReplicaFindings,
    Run,
    Where,
    look_through_all,
)
from lapse.lifecycle.erase.window import Window

FORGEABLE = (
    "the report knows files by CRC-32C alone, and other bytes could have the same: with its keys "
    "everything is looked through again"
)
NOT_SEARCHED = "was not looked through: it is not as it was, and its keys were not given"


@dataclass(frozen=True, slots=True)
class Difference:
    """How a file, or a whole replica, differs from what the report says."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check.

    Attributes:
        replicas: findings as of now. verdict: what follows from them.
        as_it_was: how many files have unchanged bytes.
    """

    replicas: tuple[ReplicaFindings, ...]
    verdict: Verdict
    differences: tuple[Difference, ...]
    as_it_was: int


def check(
    report: Report, run: Run | None, clock: Clock, on_bytes: OnBytes,
    moved: Sequence[str] = (),
) -> Checked:  # fmt: skip
    """Compare; with `run` (which knows the keys) also search everything.

    `moved` are the replicas' directories now, in the report's order; empty: where they were.
    """
    paths = list(moved) or [replica.path for replica in report.replicas]
    wheres = [
        Where(
            path, report.topic, report.partition, before.sort, report.asked.bounds,
            report.asked.topic_id,
        )
        for before, path in zip(report.replicas, paths, strict=True)
    ]  # fmt: skip
    pairs = list(zip(report.replicas, wheres, strict=True))
    if run is None:
        compared = [_compared(before, where, on_bytes) for before, where in pairs]
        known = [one.known for one in compared]
        replicas = look_through_all(wheres, _not_searched, clock, known)
    else:
        replicas = look_through_all(wheres, run, clock)
        triples = zip(report.replicas, wheres, replicas, strict=True)
        compared = [_compared_to(*triple) for triple in triples]
    differences: list[Difference] = []
    for before, now, one in zip(report.replicas, replicas, compared, strict=True):
        differences += _of_another(before, now)
        differences += [*_of_another_topic(before, now), *one.differences]
    same = sum(one.same for one in compared)
    verdict = judge(replicas, report.asked, report.topic)
    keys = len(report.asked.keys)
    unseen = set(report.verdict.never_seen) - keys_seen(replicas, keys)
    verdict = with_never_seen(verdict, sorted(unseen), keys)
    doubts = [*_not_the_reports(report.replicas, replicas), *_beyond_files(report, replicas)]
    verdict = doubted(verdict, [doubt for doubt in doubts if doubt not in verdict.reasons])
    if run is None and report.is_forgeable:
        verdict = doubted(verdict, [FORGEABLE])
    return Checked(replicas, verdict, tuple(differences), same)


@dataclass(frozen=True, slots=True)
class _Compared:
    """How a replica differs; `same`: how many files do not; `known`: what is known of those."""

    differences: list[Difference]
    same: int = 0
    known: tuple[Findings, ...] = ()


def _compared_to(before: ReplicaFindings, where: Where, now: ReplicaFindings) -> _Compared:
    """Everything was searched, no matter what the report says was found there."""
    if now.problem is not None and not now.files:
        return _Compared([Difference(where.path, now.problem)])
    there = {found.path: found for found in now.files}
    whats = []
    for found in before.files:
        here = there.get(found.path)
        state = None if here is None or here.problem is not None else here.state
        size = 0 if here is None else here.end
        whats.append(_difference(found, here is not None, state, size, _has(where, found, here)))
    kept = zip(before.files, whats, strict=True)
    same = sum(what in _AS_IT_WAS and found.kind != KEYLESS for found, what in kept)
    return _Compared(_differences(where, before, whats, there), same)


def _has(where: Where, found: Findings, here: Findings | None) -> Callable[[], bool]:
    """Whether a file's bytes are unchanged: by the hashes just made, or by reading it again."""

    def has_bytes() -> bool:
        assert here is not None
        spans = [(piece.start, piece.end) for piece in here.pieces]
        if spans == [(p.start, p.end) for p in found.pieces if p.sha256 is not None]:
            return here.pieces == found.pieces
        return _has_bytes(where, found, lambda _: None)

    return has_bytes


def _compared(before: ReplicaFindings, where: Where, on_bytes: OnBytes) -> _Compared:
    """Keep the findings of files with unchanged bytes; the keys are not known."""
    listing = where.listed()
    if listing.problem is not None:
        return _Compared([Difference(where.path, listing.problem)])
    there = {place.path: place for place in listing.places}
    known: dict[str, Findings] = {}
    whats = []
    for found in before.files:
        place = there.get(found.path)
        state = None if place is None or place.problem is not None else place.state
        size = 0 if state is None else state.size
        has_bytes = partial(_has_bytes, where, found, on_bytes)
        what = _difference(found, place is not None, state, size, has_bytes)
        if what in _AS_IT_WAS and found.kind != KEYLESS:
            known[found.path] = replace(found, state=state)
        whats.append(what)
    return _Compared(_differences(where, before, whats, there), len(known), (*known.values(),))


def _not_searched(units: Sequence[AuditUnit]) -> Iterable[Findings]:
    """In place of a run, if the keys are not known."""
    return [Findings(unit.path, problem=NOT_SEARCHED) for unit in units]


def _differences(
    where: Where, before: ReplicaFindings, whats: Sequence[str | None],
    there: Mapping[str, object],
) -> list[Difference]:  # fmt: skip
    pairs = zip(before.files, whats, strict=True)
    changed = [Difference(f"{where.path}/{found.path}", what) for found, what in pairs if what]
    known = {found.path for found in before.files}
    return changed + [
        Difference(f"{where.path}/{path}", "new") for path in there if path not in known
    ]


def _beyond_files(report: Report, replicas: Sequence[ReplicaFindings]) -> tuple[str, ...]:
    """What speaks against a proof and is in no file: by the brokers of then, or a disk's error.

    Older reports have it among their verdict's reasons alone: whatever their findings do not give.
    """
    if report.doubts is None:
        given = judge(report.replicas, report.asked, report.topic).reasons
        return tuple(reason for reason in report.verdict.reasons if reason not in given)
    expected = {one.partition: one.brokers for one in report.expected}
    return (*report.doubts, *replicas_missing(replicas, report.topic, expected))


def _not_the_reports(
    befores: Sequence[ReplicaFindings], nows: Sequence[ReplicaFindings]
) -> Iterator[str]:
    """Directories that are not the report's, as sentences."""
    for before, now in zip(befores, nows, strict=True):
        for difference in _of_another(before, now):
            yield f"{difference.path} is {difference.what}"
    then_ids, now_ids = [_ids(one) for one in befores], [_ids_now(one) for one in nows]
    for (i, one), (j, other) in combinations(enumerate(nows), 2):
        if now_ids[i] & now_ids[j] and not then_ids[i] & then_ids[j]:
            yield f"{one.path} and {other.path} are one directory: the report has two"
    yield from _lost(befores, nows)


def _lost(befores: Sequence[ReplicaFindings], nows: Sequence[ReplicaFindings]) -> Iterator[str]:
    """Partitions that a directory has no more, unless another has got them since."""
    lost, got = list[tuple[str, str]](), Counter[str]()
    for before, now in zip(befores, nows, strict=True):
        then, here = ({home.folder for home in one.homes} for one in (before, now))
        got.update(here - then)
        if now.problem is None:  # else that is the reason
            lost += [(now.path, folder) for folder in sorted(then - here)]
    for path, folder in lost:
        if got[folder]:
            got[folder] -= 1
        else:
            yield f"{path} has no {folder} any more, and no given directory has got it since"


def _ids(replica: ReplicaFindings) -> set[tuple[int, int] | str]:
    """What two descriptions of one directory have in common: its path, or its partitions."""
    return {replica.path, *((home.device, home.inode) for home in replica.homes)}


def _ids_now(replica: ReplicaFindings) -> set[tuple[int, int] | str]:
    """As `_ids`, and the directory itself, whatever path leads to it."""
    ids = _ids(replica)
    if not is_bucket(replica.path):
        with suppress(OSError):
            state = Path(replica.path).stat()
            ids.add((state.st_dev, state.st_ino))
    return ids


def _of_another(before: ReplicaFindings, now: ReplicaFindings) -> Iterator[Difference]:
    """Directories that belong to another cluster by now, or to another broker."""
    for what, was, here in (
        ("cluster", before.cluster_id, now.cluster_id), ("broker", before.node_id, now.node_id)
    ):  # fmt: skip
        if was is not None and here not in {None, was}:
            yield Difference(now.path, f"of {what} {here}; the report has {what} {was} there")


def _of_another_topic(before: ReplicaFindings, now: ReplicaFindings) -> Iterator[Difference]:
    """Partitions that belong to another topic of that name by now."""
    were = {home.folder: home.topic_id for home in before.homes}
    for home in now.homes:
        topic_id = were.get(home.folder)
        if topic_id is not None and home.topic_id not in {None, topic_id}:
            was = f"of topic id {home.topic_id}; the report has topic id {topic_id} there"
            yield Difference(f"{now.path}/{home.folder}", was)


_TOUCHED = "touched: the bytes are the same"
_AS_IT_WAS = frozenset({None, _TOUCHED})


def _difference(
    found: Findings, is_there: bool, state: FileState | None, size: int,
    has_bytes: Callable[[], bool],
) -> str | None:  # fmt: skip
    """How a file differs from what was found; `state` is None if it cannot be read now."""
    if not is_there:
        return "gone"
    if found.kind == KEYLESS:
        return None  # recognised by its name, anew each time
    if found.problem is not None or state is None or found.state is None:
        return "could not be read then, or cannot be now"
    if size < found.end:
        return "changed: it is shorter"
    if not has_bytes():
        return "changed"
    if size > found.end:
        return f"longer by {size - found.end} bytes"
    then, now = found.state, state
    same = (then.size, then.mtime_ns, then.inode) == (now.size, now.mtime_ns, now.inode)
    return None if same else _TOUCHED


def _has_bytes(where: Where, found: Findings, on_bytes: OnBytes) -> bool:
    """Whether a file's bytes are unchanged, by their hashes."""
    try:
        with _open(where.path, found.path) as fd:
            return all(_has_piece(fd, piece, on_bytes) for piece in found.pieces)
    except (OSError, LapseError):
        return False


@contextmanager
def _open(replica: str, path: str) -> Iterator[int]:
    if is_bucket(replica):
        with copied(replica, path) as (fd, _):
            yield fd
        return
    fd = os.open(Path(replica) / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _has_piece(fd: int, piece: Piece, on_bytes: OnBytes) -> bool:
    window, crc = Window(fd, piece.start, piece.end), 0
    while window.reach < window.end:
        before = window.reach
        window.fill(before)
        if piece.sha256 is None:
            crc = int(crc32c_more(crc, window.data, 0, window.filled))
        on_bytes(window.reach - before)
    if window.end != piece.end:
        return False
    if piece.sha256 is None:
        return crc == piece.crc32c
    return window.sha256.hexdigest() == piece.sha256
