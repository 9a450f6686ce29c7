"""An erasure from its order to its proof: tombstones, rounds, waiting, a last look at all files.

Every step may be repeated, and nothing is remembered but the order (`order`): whoever is killed is
run again, looks at the files, and does what is still to be done. Only looks decide. The last one of
a topic reads every file anew, and its findings are the proof's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError, LapseError
from lapse.base.fs import Fs
from lapse.lifecycle.erase import served
from lapse.lifecycle.erase.findings import Findings
from lapse.lifecycle.erase.order import (
    Due,
    Left,
    Order,
    TopicOrder,
    replicas_missing,
    save_order,
    tombstones_due,
    what_is_left,
)
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, Verdict, judge, totals
from lapse.lifecycle.erase.replicas import ReplicaFindings, Run, Where, look_through
from lapse.lifecycle.erase.search import Asked, Search, hash_of, told
from lapse.lifecycle.erase.served import Broker, Served

PATIENCE_MS = 180_000  # doubts that have not changed for so long are not about to go
HINT_MS = 600_000  # values that have not changed for so long want somebody's attention
REST_SECONDS = 4.0  # who sleeps for so long has seen no change for as long
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.25, 30.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look: directories, and whether each is a folder of which everything counts."""

    paths: tuple[tuple[str, bool], ...]

    def of(self, part: TopicOrder) -> list[Where]:
        return [
            Where(path, part.topic, None, scratch, part.bounds, part.topic_id)
            for path, scratch in self.paths
        ]


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at all replicas came to."""

    replicas: tuple[ReplicaFindings, ...]
    asked: Asked
    verdict: Verdict
    left: Left
    started_ms: int
    ended_ms: int


@dataclass(slots=True)
class Target:
    """A topic under way.

    Attributes:
        keys: by number. salt: of its report. run: who looks files through for these keys.
        last: the look that was last. since_ms: when what is left changed last.
        written: tombstones written by this process. may_force: no broker has refused that yet.
        is_hinted: it was said that nothing changes.
        is_done: nothing more is to be waited for.
    """

    part: TopicOrder
    keys: tuple[bytes, ...]
    search: Search
    salt: str
    run: Run
    last: Look | None = None
    since_ms: int = 0
    written: set[Due] = field(default_factory=set)
    may_force: bool = True
    is_hinted: bool = False
    is_done: bool = False


def given(order: Order, answers: Iterable[Served], keys: Mapping[str, Sequence[bytes]]) -> Order:
    """The order with all topics in it; pure. Raises ConfigError where one is another by now."""
    for answer in answers:
        part = order.topic(answer.topic)
        if part is None:
            hashes = tuple(hash_of(key, order.salt) for key in keys[answer.topic])
            part = TopicOrder(answer.topic, answer.topic_id, hashes, answer.ends)
            order = order.with_topic(part)
        elif part.topic_id != answer.topic_id:
            raise ConfigError(
                f"topic {answer.topic} is not the one the order is about: it was deleted and made "
                "again since; give a new order"
            )
    return order


class Erasure:
    """The loop. `targets` are those of the order's topics, in its order.

    `rest` is called before it sleeps for long.
    """

    def __init__(
        self, broker: Broker, order: Order, targets: Sequence[Target], places: Places, clock: Clock,
        rest: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._broker, self._clock, self._places, self._rest = broker, clock, places, rest
        self.order, self.targets = order, targets

    def look(self, target: Target, *, anew: bool = False) -> Look:
        """Look at all replicas; what did not change since the last look is not read again."""
        started_ms = self._clock.now_ms()
        before = {} if anew or target.last is None else _by_path(target.last.replicas)
        replicas = tuple(
            look_through(
                where, target.run, self._clock, before.get((where.path, where.scratch), ())
            )
            for where in self._places.of(target.part)
        )
        asked = told(target.search, target.salt, target.part.bounds, target.part.topic_id)
        verdict = judge(replicas, asked, target.part.topic)
        left = what_is_left(totals(replicas), asked, verdict)
        ended_ms = self._clock.now_ms()
        if target.last is None or target.last.left != left:
            target.since_ms = ended_ms
        target.last = Look(replicas, asked, verdict, left, started_ms, ended_ms)
        return target.last

    def due(self, target: Target) -> list[Due]:
        """Tombstones that its last look shows to be missing."""
        assert target.last is not None
        part = target.part
        due = tombstones_due(target.last.replicas, len(target.keys), part.bounds)
        return [one for one in due if one not in target.written]

    def require_all_replicas(self, target: Target, expected: Mapping[int, int]) -> None:
        """Raise ConfigError where a replica was not given: it could not be proven empty."""
        assert target.last is not None
        missing = replicas_missing(target.last.replicas, target.part.topic, expected)
        if missing:
            raise ConfigError(f"{missing[0]}; give a --replica for each, of all brokers")

    # --- effects ----------------------------------------------------------------------------------

    def run(
        self, fs: Fs, folder: Path, say: Say, *, until_ms: int | None, lags: Mapping[str, Served]
    ) -> None:
        """Until all is proven, nothing more can be waited for, or it is `until_ms`.

        `lags`: topics whose rounds may be brought on by a setting.
        """
        with self._put_back_at_the_end(fs, folder, say):
            for target in self.targets:
                self._write(target, say)
                self._force(target, lags, fs, folder, say)
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

    def _step(
        self, target: Target, lags: Mapping[str, Served], fs: Fs, folder: Path, say: Say
    ) -> bool:
        """Look again, unless that is over; whether anything is otherwise now."""
        if target.is_done:
            return False
        before = target.last
        look = self.look(target)
        if self.due(target):
            self._write(target, say)
        if not look.left.values:
            self._put_back(target, fs, folder, say)
        else:
            self._force(target, lags, fs, folder, say)
        if look.verdict.state == PROVEN:
            look = self.look(target, anew=True)
            target.is_done = look.verdict.state == PROVEN
        elif look.verdict.state == NOT_PROVEN:
            target.is_done = look.ended_ms - target.since_ms > PATIENCE_MS
        changed = before is None or before.left != look.left
        if changed:
            say(f"{target.part.topic}: {look.left.told()}")
        elif look.left.values and look.ended_ms - target.since_ms > HINT_MS:
            self._hint(target, say)
        return changed

    def _hint(self, target: Target, say: Say) -> None:
        if not target.is_hinted:
            topic = target.part.topic
            say(f"{topic}: nothing goes; `lapse explain {topic}` says what rounds wait for")
        target.is_hinted = True

    def _write(self, target: Target, say: Say) -> None:
        due = self.due(target)
        if not due:
            return
        topic = target.part.topic
        asyncio.run(served.write_tombstones(self._broker, topic, target.keys, due))
        target.written.update(due)
        say(f"{topic}: {len(due)} tombstones written")

    def _force(
        self, target: Target, lags: Mapping[str, Served], fs: Fs, folder: Path, say: Say
    ) -> None:
        """The order says what was before, before it is changed."""
        topic, answer = target.part.topic, lags.get(target.part.topic)
        assert target.last is not None
        if answer is None or target.part.forced is not None or not target.may_force:
            return
        if not target.last.left.values:
            return
        forced = served.lag_wanted(answer)
        if forced is None:
            return
        self._remember(target, replace(target.part, forced=forced), fs, folder)
        try:
            asyncio.run(served.force(self._broker, topic, forced))
        except LapseError as e:
            target.may_force = False
            self._remember(target, replace(target.part, forced=None), fs, folder)
            say(f"{topic}: rounds come when they are due; {forced.name} cannot be set: {e}")
            return
        before = forced.before or "the broker's default"
        say(f"{topic}: {forced.name}={forced.value} until the values are gone (was {before})")

    def _put_back(self, target: Target, fs: Fs, folder: Path, say: Say) -> None:
        forced, topic = target.part.forced, target.part.topic
        if forced is None:
            return
        try:
            done = asyncio.run(served.put_back(self._broker, topic, forced))
        except LapseError as e:
            say(f"{topic}: {forced.name} is still {forced.value}: {e}")
            return
        self._remember(target, replace(target.part, forced=None), fs, folder)
        what = "is as it was" if done else "was set by somebody else meanwhile, and stays"
        say(f"{topic}: {forced.name} {what}")

    def _remember(self, target: Target, part: TopicOrder, fs: Fs, folder: Path) -> None:
        order = self.order.with_topic(part)
        save_order(fs, folder, order)
        self.order, target.part = order, part

    @contextmanager
    def _put_back_at_the_end(self, fs: Fs, folder: Path, say: Say) -> Iterator[None]:
        try:
            yield
        finally:
            for target in self.targets:
                self._put_back(target, fs, folder, say)


def _by_path(
    replicas: Iterable[ReplicaFindings],
) -> dict[tuple[str, bool], Iterable[Findings]]:
    return {(replica.path, replica.scratch): replica.files for replica in replicas}
