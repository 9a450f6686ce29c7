"""One run: Lapse comes up, clients write and read, the story happens, all is quiet, all is judged.

The order matters. Only when nothing is wrong any more and every client is answered does the time
count by which things must be gone; then comes the last look by stock consumers, a clean stop, and a
look at the files.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.lifecycle.status.reports import PROGRESS, QUEUE, read_progress, read_queue
from lapse.log.checkpoints import LOG_START, read_offsets
from lapse.testing.history import files
from lapse.testing.history.account import Account
from lapse.testing.history.events import Isolation
from lapse.testing.history.judge import judge
from lapse.testing.history.promise import Promise
from tests.chaos import story as stories
from tests.chaos.disk import Disk, disk_of_its_own
from tests.chaos.faults import Scene, carry_out
from tests.chaos.frail import READ_SECONDS_MAX, Frail, is_well
from tests.chaos.house import House, NotUp, wait_until
from tests.chaos.interpose import Interposer, compiler
from tests.chaos.loads import SLACK_MS, Loads
from tests.chaos.readers import REST_SECONDS, sweep
from tests.chaos.record import Record
from tests.chaos.story import INTERPOSER, Story
from tests.chaos.topics import PARTITIONS, SETTINGS, TOPICS, Topic

CALM_SECONDS_MAX = 240.0  # restarts are put off for longer and longer, and so are failed rounds
WORKING = frozenset({"idle", "running", "looking"})  # what a service says that can do its work
LAST_SWEEP_TRIES = 5
WATCH_SECONDS = 5.0
PER_SECOND = 200.0
# What no log of ours may say, whatever happens to it.
NEVER_SAID = re.compile(r"ended by an error of ours|AssertionError|Fatal Python error|SIGSEGV")
LEFT_OVER = re.compile(r"\.(deleted|swap|cleaned)$|^intent$")


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        findings: whatever is wrong, one line or more each; none if all is well.
        hits: how often faults found what they were for, by kind.
        errors: what clients were told, by name: not wrong by itself.
        looked: how much was judged.
        said: what was told while it ran.
    """

    story: Story
    findings: list[str] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    looked: str = ""
    acknowledged: int = 0
    said: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        hits = ", ".join(f"{kind} {n}" for kind, n in sorted(self.hits.items()))
        errors = ", ".join(f"{name} {n}" for name, n in self.errors.most_common())
        findings = [f"FOUND {finding}" for finding in self.findings]
        last = f"{len(self.findings)} findings (make chaos SEED={self.story.seed})"
        return [f"met: {hits}", f"told to clients: {errors}", self.looked, *findings, last]


def drawn(seed: int, seconds: float, only: tuple[str, ...] = ()) -> Story:
    """The story of a seed, on this machine."""
    lacking = () if compiler() else (INTERPOSER,)
    return stories.draw(seed, seconds, lacking=lacking, only=only)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run.

    Attributes:
        saved: a folder for data, log and history of a run with findings.
        engine: as of `lapse up`.
        plant: does what no broker survives unharmed, right before the end of the story. It must be
            found; what is late is not looked for then.
        per_second: records, about.
        rest_seconds: between two sweeps over all topics.
        watch: is shown the house, and the folder of its temporary files, every few seconds.
        judge: finds more, when all is over.
        has_frail: whether the topic that is damaged is written to; it keeps everything.
    """

    story: Story
    saved: Path
    engine: str = "spark"
    plant: Callable[[House], None] | None = None
    per_second: float = PER_SECOND
    topics: tuple[Topic, ...] = TOPICS
    rest_seconds: float = REST_SECONDS
    watch: Callable[[House, Path], None] | None = None
    judge: Callable[[], list[str]] | None = None
    has_frail: bool = True


def run(wanted: Wanted, tell: Callable[[str], None]) -> Outcome:
    """Carry a story out and judge it."""
    story = wanted.story
    outcome = Outcome(story)

    began = time.monotonic()

    def said(text: str) -> None:
        line = f"{time.monotonic() - began:7.1f} s  {text}"
        outcome.said.append(line)
        tell(line)

    with tempfile.TemporaryDirectory(prefix="lapse-chaos-") as folder:
        at = Path(folder)
        with disk_of_its_own(at) as disk:
            data = disk.path / "data"
            interposer = Interposer(at, data, story.seed) if compiler() else None
            temporary = at / "tmp"
            temporary.mkdir()
            environment = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
            environment.update(interposer.environment if interposer else {})
            house = House(data, at / "log", SETTINGS, environment, "--engine", wanted.engine)
            record = Record(at / "history.jsonl")
            scene_of = _Scene(house, disk, temporary, set(), interposer, record, outcome, said)
            try:
                _live_through(scene_of, wanted)
            except NotUp as e:
                outcome.findings.append(f"not up: {e}")
            finally:
                if interposer is not None:
                    interposer.mend_disk()
                house.close()
                record.close()
            _judge(scene_of)
            if wanted.judge is not None:
                outcome.findings += wanted.judge()
            if outcome.findings:
                _save(scene_of, at, wanted.saved)
    return outcome


@dataclass
class _Scene:
    house: House
    disk: Disk
    temporary: Path
    damaged: set[str]
    interposer: Interposer | None
    record: Record
    outcome: Outcome
    tell: Callable[[str], None]


def _live_through(at: _Scene, wanted: Wanted) -> None:
    story = wanted.story
    house, record, outcome = at.house, at.record, at.outcome
    house.start()
    _wait_until_calm(at)
    loads = Loads(
        house.kafka, record, wanted.topics, wanted.per_second, wanted.rest_seconds, story.seed
    )
    frail = Frail(house.kafka)
    loads.create_topics()
    loads.start()
    if wanted.has_frail:
        frail.start()
    record.disturbed(f"seed {story.seed}")
    scene = Scene(house, at.disk, at.interposer, loads, at.tell, outcome.hits, at.damaged)
    try:
        with _kept_alive(at), _watched(at, wanted):
            carry_out(scene, story.faults, story.seconds)
            if wanted.plant is not None:
                wanted.plant(house)
            at.tell("the story is over")
            _wait_until_calm(at)
        loads.stop_writing()
        record.quiet()
        at.tell("all is quiet")
        if wanted.plant is None:
            time.sleep(
                _longest_bound_s(wanted.topics)
            )  # nothing tells that it is over but the time itself
    finally:
        frail.ending.set()
        loads.finish()
        if wanted.has_frail:
            frail.join(READ_SECONDS_MAX)
        outcome.findings += loads.findings
        outcome.errors = record.errors
    _look_a_last_time(at, wanted.topics)
    outcome.findings += frail.judge(house.page("/health")[1], house.log())
    _stop(at)
    _look_into_files(at, wanted.topics)


def _kept_alive(at: _Scene) -> AbstractContextManager[None]:
    """`lapse up` is started again whenever it has ended, as a service manager does."""

    def revive() -> None:
        try:
            if at.house.revive():
                at.tell("lapse up is started again")
        except NotUp as e:
            at.tell(f"lapse up is not there yet: {str(e)[-300:]}")

    return _beside(revive, 0.1)


def _watched(at: _Scene, wanted: Wanted) -> AbstractContextManager[None]:
    """Every few seconds `Wanted.watch` is shown the house."""
    watch = wanted.watch
    if watch is None:
        return nullcontext()
    return _beside(lambda: watch(at.house, at.temporary), WATCH_SECONDS)


@contextmanager
def _beside(do: Callable[[], None], pause_seconds: float) -> Iterator[None]:
    """`do` is called again and again, in a thread."""
    end = threading.Event()

    def repeat() -> None:
        while not end.wait(pause_seconds):
            do()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _wait_until_calm(at: _Scene) -> None:
    """Until the broker is healthy and its service has looked at all, with nothing put off."""

    def is_calm() -> bool:
        if not is_well(*at.house.page("/health"), at.damaged):
            return False
        try:
            now, queue = read_progress(at.house.data), read_queue(at.house.data)
        except LapseError:  # a fault has garbled it, and the service has yet to write it again
            return False
        if now is None or now.pid not in at.house.pids("service") or now.state not in WORKING:
            return False
        return queue is None or {held.log for held in queue.held} <= at.damaged

    try:
        wait_until(is_calm, "a healthy broker and service", CALM_SECONDS_MAX)
    except NotUp as e:
        told = at.house.page("/health")
        files = (at.house.data / name for name in (PROGRESS, QUEUE))
        service = [path.read_text() for path in files if path.exists()]
        raise NotUp(f"{e}; /health says {told}; the service {service}") from None


def _longest_bound_s(topics: Sequence[Topic]) -> float:
    """From when all is quiet until everything that is due is gone."""
    bounds = [0]
    for topic in topics:
        p = Promise.of(topic.settings, slack_ms=SLACK_MS)
        unlinked_ms = p.unlinked_ms or 0
        for gone_ms in (p.superseded_gone_ms, p.tombstone_gone_ms, p.expired_gone_ms):
            bounds.append((gone_ms or 0) + unlinked_ms)
    return (max(bounds) + 2000) / 1000


def _look_a_last_time(at: _Scene, topics: Sequence[Topic]) -> None:
    """Everything, by stock consumers of either isolation."""
    never = threading.Event()
    for isolation in (Isolation.UNCOMMITTED, Isolation.COMMITTED):
        done = any(
            sweep(f"last-{isolation}-{n}", at.house.kafka, topics, at.record, isolation, never)
            for n in range(LAST_SWEEP_TRIES)
        )
        if not done:
            at.outcome.findings.append(f"a {isolation} consumer cannot read everything at the end")


def _stop(at: _Scene) -> None:
    """A clean stop, after which nobody and nothing is left over."""
    code = at.house.stop()
    if code != 0:
        at.outcome.findings.append(f"lapse up ended with exit code {code}")
    gone = time.monotonic() + 10
    while at.house.roles() and time.monotonic() < gone:
        time.sleep(0.1)
    if left := at.house.roles():
        at.outcome.findings.append(f"processes are left: {left}")
    for path in sorted(at.house.data.rglob("*")):
        if LEFT_OVER.search(path.name):
            at.outcome.findings.append(f"left over: {path.relative_to(at.house.data)}")


def _look_into_files(at: _Scene, topics: Sequence[Topic]) -> None:
    """Nothing moves: no file has what must be gone, and the ledger says what became of the rest."""
    places = [at.house.data / f"{topic.name}-{n}" for topic in topics for n in range(PARTITIONS)]
    for place in places:
        files.look(at.record, place)
    account = Account.of(at.record.events)
    starts = read_offsets(at.house.data / LOG_START)
    for place in places:
        partition = TopicPartition.parse(place.name)
        assert partition is not None
        bases = [int(path.stem) for path in place.glob("*.log")]  # retention leaves nothing else
        start = max(starts.get(partition, 0), min(bases, default=0))
        found = files.ledger_findings(account, place, start)
        at.outcome.findings += map(str, found)


def _judge(at: _Scene) -> None:
    outcome = at.outcome
    verdict = judge(at.record.events)
    outcome.looked, outcome.acknowledged = str(verdict), verdict.acknowledged
    outcome.findings += map(str, verdict.findings)
    log = at.house.log() if at.house.log_path.exists() else ""
    outcome.findings += [
        f"its log says: {line}" for line in log.splitlines() if NEVER_SAID.search(line)
    ]


def _save(at: _Scene, folder: Path, saved: Path) -> None:
    """What a person needs to see what went wrong."""
    shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir(parents=True)
    (saved / "story.json").write_bytes(stories.encode(at.outcome.story))
    (saved / "outcome.txt").write_text("\n".join([*at.outcome.said, *at.outcome.lines()]) + "\n")
    for name in ("log", "history.jsonl"):
        if (folder / name).exists():
            shutil.copy(folder / name, saved / name)
    if at.house.data.exists():
        ignored = shutil.ignore_patterns("control.sock")
        shutil.copytree(at.house.data, saved / "data", ignore=ignored)
    at.tell(f"kept in {saved}")
