"""An erasure from its order to its proof: tombstones, rounds, waiting, a last look at all files.

Every step may be repeated, and only the order (`order`) is stored: a process that was killed is run
again, looks at the files, and does what is still to be done. Only looks decide. The last look of a
topic reads every file anew, and its findings go into the proof.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError, LapseError, StorageError
from lapse.base.fs import Fs
from lapse.lifecycle.erase import served
from lapse.lifecycle.erase.findings import KEYLESS, Findings
from lapse.lifecycle.erase.order import (
    Due,
    Forced,
    Left,
    Order,
    TopicOrder,
    replicas_missing,
    save_order,
    tombstones_due,
    what_is_left,
)
from lapse.lifecycle.erase.places import is_cut_off
from lapse.lifecycle.erase.proof import (
    FORMAT,
    GONE,
    NOT_PROVEN,
    REMAINS,
    Expected,
    Report,
    Verdict,
    cluster_ids_of,
    doubted,
    encode_report,
    judge,
    keys_seen,
    topic_ids_of,
    totals,
    with_never_seen,
)
from lapse.lifecycle.erase.replicas import ReplicaFindings, Run, Sort, Where, look_through
from lapse.lifecycle.erase.search import Search, SearchSpec, hash_of, spec_of
from lapse.lifecycle.erase.served import Served
from lapse.lifecycle.erase.sign import fingerprint, public_key_of, seal
from lapse.lifecycle.erase.table_files import may_be_of, topic_of_table
from lapse.log.summary import FOLDER

PATIENCE_SECONDS = 180  # doubts that have not changed for this long will not go away
HINT_SECONDS = 600  # values that have not changed for this long need the operator's attention
REST_SECONDS = 4.0  # a sleep this long means that nothing has changed for as long
_NAMED_MAX = 10
# Errors of file systems that have nothing to sync in a folder, or are mounted read-only.
_NO_SUCH_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS})
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.25, 30.0

Say = Callable[[str], None]


class Brokers(Protocol):
    """What an erasure needs from its topics' brokers; `served.Network` does it over the network.

    Raises LapseError.
    """

    def replicas(self, topic: str, topic_id: str) -> Mapping[int, Sequence[int]]:
        """Which brokers have each partition now."""

    def write_tombstones(self, topic: str, keys: Sequence[bytes], due: Sequence[Due]) -> None:
        """All of them are in the logs when this returns."""

    def force(self, topic: str, forced: Forced) -> bool:
        """Change a setting, repeatably; False if it was set to another value meanwhile."""

    def put_back(self, topic: str, forced: Forced) -> bool:
        """Restore a setting; False if it was set to another value meanwhile."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look: directories, and what each is."""

    paths: tuple[tuple[str, Sort], ...]

    def of(self, part: TopicOrder) -> list[Where]:
        """All but the tables of other topics."""
        return [
            Where(path, part.topic, None, sort, part.bounds, part.topic_id)
            for path, sort in self.paths
            if sort is not Sort.TABLE or may_be_of(path, topic_of_table(path)[0], part.topic)
        ]


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look at all replicas."""

    replicas: tuple[ReplicaFindings, ...]
    spec: SearchSpec
    verdict: Verdict
    left: Left
    started_ms: int
    ended_ms: int


@dataclass(slots=True)
class Target:
    """A topic whose erasure is under way.

    Attributes:
        keys: by number. salt: of its report. run: searches files for these keys.
        last: the last look. since_seconds: when what is left changed last, from one step to the
            next; monotonic, since the clock may be set meanwhile.
        written: tombstones written by this process. may_force: no broker has refused the forced
            setting yet.
        is_forced: this process has set it. is_unsure_reported: the operator was informed that the
            outcome of setting it is unknown.
        expected: which brokers have each partition, by what these said last.
        doubts: about the replicas, when the files were last found to be empty. beyond: those of
            them that say more than that a replica is missing.
        is_hinted: the operator was informed that nothing changes.
        is_done: there is nothing more to wait for.
    """

    part: TopicOrder
    keys: tuple[bytes, ...]
    search: Search
    salt: str
    run: Run
    last: Look | None = None
    since_seconds: float = 0.0
    written: set[Due] = field(default_factory=set)
    may_force: bool = True
    is_forced: bool = False
    is_unsure_reported: bool = False
    expected: Mapping[int, Sequence[int]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    is_hinted: bool = False
    is_done: bool = False

    @property
    def looked(self) -> Look:
        """The last look, once there was one."""
        assert self.last is not None
        return self.last

    def doubt(self, missing: Iterable[str] = (), beyond: Iterable[str] = ()) -> None:
        """Take these in place of the former doubts."""
        self.beyond = tuple(beyond)
        self.doubts = (*missing, *self.beyond)


def given(order: Order, answers: Iterable[Served], keys: Mapping[str, Sequence[bytes]]) -> Order:
    """The order with all topics in it; pure. Raises ConfigError if a topic was recreated."""
    for answer in answers:
        part = order.topic(answer.topic)
        if part is None:
            hashes = tuple(hash_of(key, order.salt) for key in keys[answer.topic])
            part = TopicOrder(answer.topic, answer.topic_id, hashes, answer.ends, seen=())
            order = order.with_topic(part)
        elif part.topic_id != answer.topic_id:
            raise served.another_topic(answer.topic)
    return order


class Erasure:
    """The loop. `targets` are the order's topics, in its order.

    `rest` is called before it sleeps for long.
    """

    def __init__(
        self, brokers: Brokers, order: Order, targets: Sequence[Target], places: Places,
        clock: Clock, rest: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._brokers, self._clock, self._places, self._rest = brokers, clock, places, rest
        self.order, self.targets = order, targets
        self._kept: Order | None = None  # as in its file, once this process has written it

    def look(self, target: Target, *, anew: bool = False) -> Look:
        """Look at all replicas; what did not change since the last look is not read again."""
        started_ms = self._clock.now_ms()
        last = () if anew or target.last is None else target.last.replicas
        before = {(replica.path, replica.sort): _read_well(replica) for replica in last}
        replicas = tuple(
            look_through(where, target.run, self._clock, before.get((where.path, where.sort), ()))
            for where in self._places.of(target.part)
        )
        spec = spec_of(target.search, target.salt, target.part.bounds, target.part.topic_id)
        part = target.part.having_seen(keys_seen(replicas, len(target.keys)))
        verdict = doubted(judge(replicas, spec, part.topic), target.doubts)
        verdict = with_never_seen(verdict, part.never_seen, len(target.keys))
        left = what_is_left(totals(replicas), spec, verdict)
        if verdict.state == REMAINS:  # what an earlier run has proven gone is not, from now on
            part = part.noted(REMAINS, left.values, started_ms, tombstones_too=spec.tombstones_too)
        if part != target.part:  # `_step` saves it, since the keys may be gone by the next run
            self.order, target.part = self.order.with_topic(part), part
        if target.last is None:
            target.since_seconds = self._clock.monotonic()
        target.last = Look(replicas, spec, verdict, left, started_ms, self._clock.now_ms())
        return target.last

    def due(self, target: Target) -> list[Due]:
        """Tombstones that are missing according to the target's last look."""
        due = tombstones_due(target.looked.replicas, len(target.keys), target.part.bounds)
        return [tombstone for tombstone in due if tombstone not in target.written]

    def require_all_replicas(self, target: Target, expected: Mapping[int, Sequence[int]]) -> None:
        """Raise ConfigError if a replica was not given: it could not be proven empty."""
        target.expected = expected
        missing = replicas_missing(target.looked.replicas, target.part.topic, expected)
        if missing:
            raise ConfigError(f"{missing[0]}; give a --replica for each, of all brokers")

    def _last_look(self, target: Target, fs: Fs) -> Look:
        """Read all files anew, if they are of all replicas: some may have come or moved meanwhile.

        A replica that comes after the brokers answered is copied from replicas that are looked
        at. Removals are synced, because a power cut undoes a removal that was not.
        """
        topic = target.part.topic
        try:
            expected = self._brokers.replicas(topic, target.part.topic_id)
        except LapseError as e:
            why = f"the brokers do not say which replicas topic {topic} has: {e}"
            target.doubt(beyond=[why])
            return self.look(target)
        target.expected = expected
        target.doubt(replicas_missing(target.looked.replicas, topic, expected))
        if not target.doubts:
            look = self.look(target, anew=True)
            missing = replicas_missing(look.replicas, topic, expected)
            target.doubt(missing, _sync_removals(look.replicas, fs))
            if not target.doubts:
                return look
        return self.look(target)

    # --- effects ----------------------------------------------------------------------------------

    def run(
        self, fs: Fs, folder: Path, say: Say, *, until_ms: int | None, lags: Mapping[str, Served]
    ) -> None:
        """Run until all is proven, there is nothing more to wait for, or it is `until_ms`.

        `lags`: topics whose rounds may be made to come sooner by a setting.
        """
        try:
            for target in self.targets:
                self._report_never_seen(target, say)
                self._write(target, say)
                self._force(target, lags, fs, folder, say)
                self._report_doubts(target, say)
            pause = _PAUSE_SECONDS
            while not all(target.is_done for target in self.targets):
                changed = [self._step(target, lags, fs, folder, say) for target in self.targets]
                left_ms = None if until_ms is None else until_ms - self._clock.now_ms()
                if left_ms is not None and left_ms <= 0:
                    break
                pause = _PAUSE_SECONDS if any(changed) else min(2 * pause, _PAUSE_SECONDS_MAX)
                if pause >= REST_SECONDS:
                    self._rest()
                self._clock.sleep(pause if left_ms is None else min(pause, left_ms / 1000))
        finally:
            for target in self.targets:
                self._put_back(target, fs, folder, say)

    def _step(
        self, target: Target, lags: Mapping[str, Served], fs: Fs, folder: Path, say: Say
    ) -> bool:
        """Look again, unless the target is done; returns whether anything has changed."""
        if target.is_done:
            return False
        before = target.last
        look = self.look(target)
        if self.order != self._kept:
            self._remember(target, target.part, fs, folder)
        if self.due(target):
            self._write(target, say)
        if not needs_rounds(look):
            self._put_back(target, fs, folder, say)
        else:
            self._force(target, lags, fs, folder, say)
        if look.verdict.reasons == target.doubts:  # nothing in the files contradicts a proof
            look = self._last_look(target, fs)
            target.is_done = look.verdict.state in GONE
        changed = before is None or before.left != look.left
        if changed:
            target.since_seconds = self._clock.monotonic()
        waited_seconds = self._clock.monotonic() - target.since_seconds
        if look.verdict.state == NOT_PROVEN:
            target.is_done = waited_seconds > PATIENCE_SECONDS
        if changed:
            say(f"{target.part.topic}: {look.left.text()}")
        if in_tables(look):
            self._hint_tables(target, say)
        elif look.left.values and waited_seconds > HINT_SECONDS:
            self._hint(target, say)
        return changed

    def _report_never_seen(self, target: Target, say: Say) -> None:
        unseen = target.part.never_seen
        if unseen:
            named = ", ".join(f"key {n + 1}" for n in unseen[:_NAMED_MAX])
            more = " …" if len(unseen) > _NAMED_MAX else ""
            what = f"{len(unseen)} of {len(target.keys)} keys are in no file ({named}{more})"
            say(f"{target.part.topic}: {what}: gone before the order, never there, or mistyped")

    def _report_doubts(self, target: Target, say: Say) -> None:
        """Report doubts that only the operator can remove, instead of waiting in silence."""
        look = target.last
        if look is not None and look.verdict.state == NOT_PROVEN:
            minutes = PATIENCE_SECONDS // 60
            say(f"{target.part.topic}: {look.left.text()}; looking again for {minutes} minutes")

    def _hint(self, target: Target, say: Say) -> None:
        if not target.is_hinted:
            topic = target.part.topic
            say(f"{topic}: nothing goes; `lapse explain {topic}` says what rounds wait for")
        target.is_hinted = True

    def _hint_tables(self, target: Target, say: Say) -> None:
        """Rounds do nothing about tables."""
        if not target.is_hinted:
            tables = ", ".join(in_tables(target.looked))
            said = f"the logs have no value any more; `lapse export` again to {tables}"
            say(f"{target.part.topic}: {said}")
        target.is_hinted = True

    def _write(self, target: Target, say: Say) -> None:
        due = self.due(target)
        if not due:
            return
        topic = target.part.topic
        self._brokers.write_tombstones(topic, target.keys, due)
        target.written.update(due)
        say(f"{topic}: {len(due)} tombstones written")

    def _force(
        self, target: Target, lags: Mapping[str, Served], fs: Fs, folder: Path, say: Say
    ) -> None:
        """Change the setting; the order records its former value first."""
        topic, answer = target.part.topic, lags.get(target.part.topic)
        if answer is None or target.is_forced or not target.may_force:
            return
        if not needs_rounds(target.looked):
            return
        forced = served.to_force(answer, target.part.forced)
        if forced is None:
            return
        is_new = forced != target.part.forced
        if is_new:
            self._remember(target, replace(target.part, forced=forced), fs, folder)
        try:
            target.is_forced = self._brokers.force(topic, forced)
            why, nothing_set = "it was changed by another client meanwhile", True
        except LapseError as e:
            if not served.is_refusal(e):
                self._report_unsure(target, forced, e, say)
                return
            why, nothing_set = str(e), is_new  # an earlier attempt may have succeeded
        if target.is_forced:
            before = forced.before or "the broker's default"
            say(f"{topic}: {forced.name}={forced.value} until the values are gone (was {before})")
            return
        target.may_force = False
        if nothing_set:
            self._remember(target, replace(target.part, forced=None), fs, folder)
        say(f"{topic}: rounds come when they are due; {forced.name} cannot be set: {why}")

    def _report_unsure(self, target: Target, forced: Forced, error: LapseError, say: Say) -> None:
        """Report once: each look tries again, and the setting is put back in either case."""
        if not target.is_unsure_reported:
            what = f"{target.part.topic}: {forced.name}={forced.value}"
            say(f"{what} may have been set or not, and is tried again: {error}")
        target.is_unsure_reported = True

    def _put_back(self, target: Target, fs: Fs, folder: Path, say: Say) -> None:
        forced, topic = target.part.forced, target.part.topic
        if forced is None:
            return
        try:
            done = self._brokers.put_back(topic, forced)
        except LapseError as e:
            say(f"{topic}: {forced.name} is still {forced.value}: {e}")
            return
        self._remember(target, replace(target.part, forced=None), fs, folder)
        target.is_forced = False
        what = "is as it was" if done else "was set by another client meanwhile, and stays"
        say(f"{topic}: {forced.name} {what}")

    def end(self, fs: Fs, folder: Path, key: Ed25519PrivateKey) -> list[Path]:
        """Keep what each last look has proven, and write its signed report, durably.

        The order keeps since when it is proven: another run does not make that later. No report
        overwrites another.
        """
        for target in self.targets:  # first: a kill in between does not make the erasure late
            self._note_verdict(target, fs, folder)
        return [_write_proof(fs, folder, target, key) for target in self.targets]

    def _note_verdict(self, target: Target, fs: Fs, folder: Path) -> None:
        look = target.looked
        part = target.part.noted(
            look.verdict.state, look.left.values, look.ended_ms,
            tombstones_too=look.spec.tombstones_too,
        )  # fmt: skip
        if part != target.part:
            self._remember(target, part, fs, folder)

    def _remember(self, target: Target, part: TopicOrder, fs: Fs, folder: Path) -> None:
        order = self.order.with_topic(part)
        save_order(fs, folder, order)
        self.order, self._kept, target.part = order, order, part


def in_tables(look: Look) -> list[str]:
    """The tables that have values still, where nothing else has any."""
    counted = ((one, totals([one]).values()) for one in look.replicas)
    having = [one for one, counts in counted if any(count.records for count in counts)]
    is_all = all(one.sort is Sort.TABLE for one in having)
    return [one.path for one in having] if is_all else []


def needs_rounds(look: Look) -> bool:
    """Whether logs have values: rounds do nothing about tables, nor about what was cut off."""
    logs = (replica for replica in look.replicas if replica.sort is Sort.LOGS)
    files = (found for replica in logs for found in replica.files if not is_cut_off(found.path))
    return any(count.records for found in files for count in found.counts)


def _read_well(replica: ReplicaFindings) -> tuple[Findings, ...]:
    """What need not be read again: an error may be a moment's, as of too many open files."""
    return tuple(one for one in replica.files if one.problem is None or one.kind == KEYLESS)


def _sync_removals(replicas: Iterable[ReplicaFindings], fs: Fs) -> Iterator[str]:
    """Sync the removals from the folders that were looked at; yields the failures as sentences."""
    for replica in replicas:
        root = Path(replica.path)
        logs = {root / home.folder for home in replica.homes}
        files = {(root / found.path).parent for found in replica.files}
        for folder in sorted({root, *logs, *(log / FOLDER for log in logs), *files}):
            try:
                if folder.is_dir():
                    fs.fsync_dir(folder)
            except StorageError as e:
                cause = e.__cause__
                if not isinstance(cause, OSError) or cause.errno not in _NO_SUCH_SYNC:
                    yield f"files removed from {folder} may come back after a power cut: {e}"


def _write_proof(fs: Fs, folder: Path, target: Target, key: Ed25519PrivateKey) -> Path:
    look = target.looked
    expected = (Expected(n, tuple(nodes)) for n, nodes in sorted(target.expected.items()))
    report = Report(
        FORMAT, version("lapse"), platform.node(), target.part.topic, None, look.spec,
        look.started_ms, look.ended_ms, look.replicas, look.verdict,
        cluster_ids=cluster_ids_of(look.replicas), topic_ids=topic_ids_of(look.replicas),
        key_id=fingerprint(public_key_of(key)), doubts=target.beyond, expected=tuple(expected),
    )  # fmt: skip
    path = _new_path(folder, target.part.topic)
    fs.replace_file(path, seal(encode_report(report), key))
    return path


def _new_path(folder: Path, topic: str) -> Path:
    """Of a number that no report of the topic has yet, and none above it."""
    first = f"{topic}.proof.json"
    begin, end = f"{topic}.proof-", ".json"
    names = [path.name for path in folder.iterdir()]
    taken = [1] if first in names else []
    for name in names:
        number = name.removeprefix(begin).removesuffix(end)
        if name == f"{begin}{number}{end}" and number.isascii() and number.isdecimal():
            taken.append(int(number))
    return folder / (f"{begin}{max(taken) + 1}{end}" if taken else first)
