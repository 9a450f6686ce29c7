"""`make soak`: hours of load, and what Lapse takes of the machine meanwhile: it must stay flat.

The first part of a run is for warming up and for kills; then only what leaves broker and service
alive goes on (workers are killed all the time), so that one life of each is long enough to be
judged. The rule is `growth_max`: over the judged part, by a fit that strays do not bend (Theil and
Sen's: the median of the slopes between all pairs), a series may grow by so much and no more,
however long the run. `tests/soak.json` keeps the last report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lapse.lifecycle.round.ledger import LEDGER_FILE
from lapse.lifecycle.status.reports import ROUNDS, ROUNDS_BEFORE
from tests.chaos.house import House
from tests.chaos.run import Outcome, Wanted, drawn, run
from tests.chaos.story import Fault, Story
from tests.chaos.topics import TOPICS, Topic

ROOT = Path(__file__).resolve().parents[2]
SAVED = ROOT / "build" / "soak"
MINUTES = 120.0
MINUTES_MAX = 24 * 60.0
WARM_UP_SHARE = 0.4  # of a run, when all is killed as well; at least
WARM_UP_SECONDS_MIN = 120.0
HURTS = ("kill", "stop", "freeze", "kill-at")  # while it warms up
GOES_ON = ("delete-records", "rebalance", "churn", "alter", "crowd", "kill")
PER_SECOND = 100.0
REST_SECONDS = 30.0  # between two sweeps: all they read is kept in memory, ours
LIFE_WARM_UP_SECONDS = 90.0  # of each process, whenever it came
SAMPLES_MIN = 20
PAIRS_MAX = 200_000
MIB = 1 << 20
ROLES = ("up", "broker", "service", "java", "daemon")
LASTING = ("broker", "service", "java")  # some life of each must be long enough to be judged


def soak_topics() -> tuple[Topic, ...]:
    """As ever, but that every log has an end to what it keeps, and rolls at leisure."""
    made = []
    for topic in TOPICS:
        settings = {**topic.settings, "segment.ms": "5000"}
        if settings.get("retention.ms") == "-1":
            settings["retention.ms"] = "30000"
        made.append(replace(topic, settings=settings))
    return tuple(made)


def soak_story(seed: int, seconds: float) -> Story:
    """Kills of everything while it warms up, of workers for ever, and all that clients do."""
    warm_s = warm_up_s(seconds)
    hurts = drawn(seed, warm_s * 0.8, HURTS).faults
    chance = random.Random(seed)
    goes_on: list[Fault] = []
    for fault in drawn(seed + 1, seconds, GOES_ON).faults:
        if fault.kind != "kill":
            goes_on.append(fault)
        elif chance.random() < 0.2:
            goes_on.append(replace(fault, detail="worker"))
    faults = sorted([*hurts, *goes_on], key=lambda fault: fault.at_s)
    return Story(seed, seconds, tuple(faults))


def warm_up_s(seconds: float) -> float:
    """How long a run of so many seconds warms up: an hour of two is more than it needs."""
    return min(max(WARM_UP_SECONDS_MIN, seconds * WARM_UP_SHARE), 1800.0)


# --- what is sampled -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """One figure over time, of one process's life or of the directory.

    Attributes:
        name: such as `broker rss`.
        life: the process it is of; 0 for files.
        points: seconds since the start, and the value; of at least one.
    """

    name: str
    life: int
    points: tuple[tuple[float, float], ...]


@dataclass
class Samples:
    """Collects what `take` sees."""

    began: float = field(default_factory=time.monotonic)
    values: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    segments: list[tuple[float, Counter[str]]] = field(default_factory=list)  # of each topic

    def take(self, house: House, temporary: Path) -> None:
        """Once."""
        at_s = time.monotonic() - self.began
        for pid, role in house.roles().items():
            if role in ROLES:
                for name, value in of_process(pid):
                    self._add(f"{role} {name}", pid, at_s, value)
        files = list(_files(house.data))
        segments = [name.split("/")[1] for name, _ in files if _is_segment(name)]
        self.segments.append((at_s, Counter(part.rpartition("-")[0] for part in segments)))
        self._add("data files", 0, at_s, len(files))
        self._add("data segments", 0, at_s, len(segments))
        history = sum(size for name, size in files if is_history(name))
        self._add("history bytes", 0, at_s, history)
        self._add("data bytes", 0, at_s, sum(size for _, size in files) - history)
        attempts = sum("/.lapse/" in name and name.count("/") > 3 for name, _ in files)
        self._add("attempt files", 0, at_s, attempts)
        self._add("temporary files", 0, at_s, sum(1 for _ in _files(temporary)))

    def _add(self, name: str, life: int, at_s: float, value: float) -> None:
        self.values.setdefault((name, life), []).append((at_s, value))

    def series(self) -> list[Series]:
        return [Series(name, life, tuple(points)) for (name, life), points in self.values.items()]

    def segments_of_topics(self, warm_s: float) -> dict[str, tuple[float, float]]:
        """Of each topic: the median in the first and in the second half of the judged part."""
        late = [counts for at_s, counts in self.segments if at_s >= warm_s]
        halves = [half for half in (late[: len(late) // 2], late[len(late) // 2 :]) if half]
        if len(halves) < 2:
            return {}
        first, second = (
            {
                topic: statistics.median(counts[topic] for counts in half)
                for topic in set().union(*half)
            }
            for half in halves
        )
        both = {t: (first.get(t, 0), second.get(t, 0)) for t in sorted(first | second)}
        return {topic: medians for topic, medians in both.items() if any(medians)}


def of_process(pid: int) -> Iterator[tuple[str, float]]:
    """Memory that is its own, threads, sockets, open segments, other handles; none if it is gone.

    A broker holds each segment's file open: how many there are is for the data directory to show.
    """
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" in fields:
            yield "rss", 1024.0 * int(fields["VmRSS"].split()[0])
        yield "threads", float(fields["Threads"])
        kinds = Counter(_kind(handle) for handle in _handles(pid))
        for kind in ("handles", "sockets", "segments"):
            yield kind, float(kinds[kind])


def _handles(pid: int) -> Iterator[str]:
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(handle)


def _kind(handle: str) -> str:
    """Which series counts it; a removed file's name ends otherwise, so it counts as a handle."""
    if handle.startswith("socket:"):
        return "sockets"
    return "segments" if _is_segment(handle) else "handles"


def _is_segment(path: str) -> bool:
    return path.endswith(".log") and "/.lapse/" not in path


def is_history(path: str) -> bool:
    """Whether it is there to grow: what was removed, and when (ledgers have no end, by design)."""
    return path.endswith((f"/.lapse/{LEDGER_FILE}", ROUNDS, ROUNDS_BEFORE))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(at, name)
                yield os.path.relpath(path, folder.parent), os.stat(path).st_size


# --- the rule ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """What a series may grow by: a share of its median, or so much if that is more."""

    share: float
    least: float


# By the last word of a series' name, or all of it.
GROWTH_MAX: Mapping[str, Bound] = {
    "rss": Bound(0.05, 20 * MIB),  # heaps fill up for some minutes; two hours gave +0.2
    "java rss": Bound(0.25, 64 * MIB),  # its heap has a limit, which it nears as it likes
    "handles": Bound(0.05, 10),
    "sockets": Bound(0.05, 10),
    "segments": Bound(0.15, 10),  # as with files
    "threads": Bound(0.05, 4),
    "data files": Bound(0.15, 40),  # ledgers, append times and topics in the making come and go
    "data bytes": Bound(0.25, 4 * MIB),
    "attempt files": Bound(0.5, 20),
    "temporary files": Bound(0.1, 10),
}


UNJUDGED = frozenset({"history bytes"})  # at most two bytes a removed record, and a line a round


@dataclass(frozen=True, slots=True)
class Judged:
    """One series against the rule.

    Attributes:
        seconds: how long it was looked at.
        growth: over that time, by the fit.
        growth_max: that is allowed.
    """

    name: str
    life: int
    seconds: float
    median: float
    highest: float
    growth: float
    growth_max: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.growth_max

    def __str__(self) -> str:
        unit, by = ("MiB", MIB) if self.name.endswith(("rss", "bytes")) else ("", 1)
        return (
            f"{self.name}: {self.growth / by:+.1f} {unit} in {self.seconds:.0f} s, at most "
            f"{self.growth_max / by:.1f}; median {self.median / by:.1f}"
        )


def judge_series(all_of_them: Sequence[Series], warm_s: float) -> list[Judged]:
    """For each figure the longest life after the warm-up."""
    found: dict[str, Judged] = {}
    for series in all_of_them:
        if series.name in UNJUDGED:
            continue
        from_s = warm_s
        if series.life:
            from_s = max(warm_s, series.points[0][0] + LIFE_WARM_UP_SECONDS)
        points = [(at_s, value) for at_s, value in series.points if at_s >= from_s]
        if len(points) < SAMPLES_MIN:
            continue
        one = _judge_one(series, points)
        if series.name not in found or one.seconds > found[series.name].seconds:
            found[series.name] = one
    return list(found.values())


def _judge_one(series: Series, points: Sequence[tuple[float, float]]) -> Judged:
    values = [value for _, value in points]
    seconds = points[-1][0] - points[0][0]
    median = statistics.median(values)
    bound = GROWTH_MAX.get(series.name) or GROWTH_MAX[series.name.rpartition(" ")[2]]
    growth = slope(points) * seconds
    growth_max = max(bound.share * median, bound.least)
    return Judged(series.name, series.life, seconds, median, max(values), growth, growth_max)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: a third of the points may be anything."""
    step = max(1, int((len(points) ** 2 / 2 / PAIRS_MAX) ** 0.5 + 0.5))
    some = points[::step]
    slopes = [
        (later - value) / (then_s - at_s)
        for n, (at_s, value) in enumerate(some)
        for then_s, later in some[n + 1 :]
        if then_s > at_s
    ]
    return statistics.median(slopes) if slopes else 0.0


# --- a run ---------------------------------------------------------------------------------------


def soak(seed: int, seconds: float, saved: Path) -> tuple[Outcome, list[Judged], Samples]:
    """Findings of the run itself, and each series against the rule."""
    story, samples = soak_story(seed, seconds), Samples()
    tell("\n".join(story.lines()[:1]))
    judged: list[Judged] = []

    def judge() -> list[str]:
        judged.extend(judge_series(samples.series(), warm_up_s(seconds)))
        missing = {f"{role} rss" for role in LASTING} - {one.name for one in judged}
        findings = [f"{name} lived too shortly to be judged" for name in sorted(missing)]
        return findings + [f"not flat: {one}" for one in judged if not one.is_flat]

    wanted = Wanted(
        story, saved, per_second=PER_SECOND, topics=soak_topics(), rest_seconds=REST_SECONDS,
        watch=samples.take, judge=judge, has_frail=False,
    )  # fmt: skip
    return run(wanted, tell), judged, samples


def report(
    seed: int, seconds: float, outcome: Outcome, judged: Sequence[Judged], samples: Samples
) -> bytes:
    """As it is kept."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    document = {
        "commit": commit.stdout.strip() or "unknown",
        "seed": seed,
        "minutes": seconds / 60,
        "warm_up_minutes": warm_up_s(seconds) / 60,
        "python": sys.version.split()[0],
        "met": dict(sorted(outcome.hits.items())),
        "looked": outcome.looked,
        "findings": outcome.findings,
        "rule": {name: asdict(bound) for name, bound in GROWTH_MAX.items()},
        "segments": samples.segments_of_topics(warm_up_s(seconds)),
        "history_bytes": samples.values["history bytes", 0][-1][1],
        "series": [{**asdict(one), "is_flat": one.is_flat} for one in judged],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, help="default: a new one")
    add("--minutes", type=float, default=MINUTES, help="default: %(default)g")
    add("--record", type=Path, help="write the report there, as JSON")
    add("--saved", type=Path, default=SAVED, help="where a run with findings is kept")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= MINUTES_MAX:
        parser.error(f"--minutes {options.minutes:g}: allowed is up to {MINUTES_MAX:g}")
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    seconds = 60 * options.minutes
    outcome, judged, samples = soak(seed, seconds, options.saved / str(seed))
    kept = options.saved / str(seed)
    if kept.exists():
        points = [asdict(series) for series in samples.series()]
        (kept / "samples.json").write_text(json.dumps(points))
    if options.record is not None:
        options.record.write_bytes(report(seed, seconds, outcome, judged, samples))
    tell("\n".join([*map(str, judged), *outcome.lines()]))
    return 1 if outcome.findings else 0


def tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
