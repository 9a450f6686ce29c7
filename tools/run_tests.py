"""Runs the tiers of tests one after the other, each in a process of its own: `make test`.

A tier is a folder under `tests/` (or the linters). Each pytest process writes one JSON line a
test to the file that `LAPSE_TEST_REPORT` names (tests/conftest.py does the writing); from these
come the table of times, the ten slowest and the closing line. Fails if any test fails, if a tier
ends otherwise than pytest ends, if nothing ran, or, with CI=true, on a skip that
tests/allowed-skips.txt does not list.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools import covered

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
SCALE_DEFAULT = 0.05
SEED_DEFAULT = 20130101  # `make test` judges the same cases every time; `make torture` draws new
SLOWEST_COUNT = 10

# Tests of what runs the tests, compiles and installs: each starts processes, and is seldom of
# interest to who changes something else.
MACHINERY = " ".join(
    f"tests/unit/{name}"
    for name in ("tools/mutants", "tools/test_bootstrap.py", "tools/test_deps.py",
                 "tools/test_file_map.py", "tools/test_quick.py", "tools/test_run_tests.py",
                 "tools/test_run_tests_time_limits.py", "kernels/test_jit.py",
                 "cli/test_main_extras.py")
)  # fmt: skip

# tier -> (where its tests are, seconds it should take at SCALE_DEFAULT on two cores)
TIERS: Mapping[str, tuple[str, int]] = {
    "lint": ("", 60),
    "tidy": ("tests/test_tidy.py tests/test_rules.py", 15),
    "unit": ("tests/unit", 200),
    "lifecycle": ("tests/unit/lifecycle", 60),
    "property": ("tests/property", 90),
    "machinery": (MACHINERY, 60),
    "fuzz": ("tests/fuzz", 120),
    "hostile": ("tests/hostile", 100),
    "golden": ("tests/golden", 60),
    "oracle": ("tests/oracle", 120),
    "differential": ("tests/differential", 60),
    "crash": ("tests/crash", 120),
    "simulation": ("tests/simulation", 120),
    "compat": ("tests/compat", 480),
    "spark": ("tests/spark", 300),
    "chaos": ("tests/chaos", 180),
    "browser": ("tests/browser", 60),
    "readable": ("tests/unit/broker", 60),
}
# The broker's tests once more, on brokers without the fast path: of `make torture` only, since the
# two paths are compared request by request in tests/property/test_fast_requests.py.
AT_FULL_COUNTS = frozenset({"readable"})
# `make check`: in one run, without what is slow (tests/slow.txt) and without counting branches.
INNER = {"inner": ("tests/test_tidy.py tests/test_rules.py tests/unit tests/property", 200)}
KNOWN: Mapping[str, tuple[str, int]] = {**TIERS, **INNER}
# All but the linters run by file (so that fixtures of a module are made
# once) in as many processes as there are cores, and those that mostly wait for other programs in
# more. Which file is begun first is decided in tests/conftest.py.
CORES = min(4, os.cpu_count() or 1)
SPREAD: Mapping[str, int] = {
    **dict.fromkeys(KNOWN.keys() - {"lint"}, CORES),
    **dict.fromkeys(("tidy", "fuzz", "spark", "chaos", "browser"), CORES + 1),
    "compat": CORES + 3,
}
# Tiers within another one's folder: one has to itself what `covered` looks at.
APART: Mapping[str, str] = {
    "unit": f"tests/unit/lifecycle {MACHINERY}",
    "inner": MACHINERY,
    "readable": "tests/unit/broker/fast",
}
# These run as one if all are asked for: processes start once, and nobody waits for the last test of
# each tier. The first one says how.
TOGETHER = (
    ("tidy", "unit", "property", "machinery", "golden"),
    ("fuzz", "hostile", "oracle"),
)
# chaos waits for clocks and programs for two thirds of its time. What only computes runs beside it,
# if both are asked for, and gets what it leaves; by who leads each. (compat leaves a third, but two
# cores of one processor do no more when both are at work: crash and simulation gained nothing.)
BESIDE: Mapping[str, str] = {"tidy": "chaos"}
ASIDE_NICE = 19
COVERED = "lifecycle"
REPORT = "report.jsonl"
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
NO_SECOND_TRY = ("--max-worker-restart", "0")  # a test that kills its process would kill them all
BY_TEST = ("--dist", "worksteal")
# Of one file, or of long tests.
BY_TEST_TIERS = frozenset({"simulation", "crash"})
# These sync small files by the thousand and prove nothing about disks: in memory, if there is room,
# though not in `make torture`.
IN_MEMORY = frozenset(
    {"tidy", "unit", "lifecycle", "property", "machinery", "golden", "simulation", "inner"}
)
# What survives there is decided by a double of a disk, in torture too.
ALWAYS_IN_MEMORY = frozenset({"crash"})
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30
SAME_ORDER = frozenset({"simulation"})  # of sets: it is a part of a seed's story
BIN = Path(sys.prefix) / "bin"
LINTERS: Mapping[str, Sequence[str]] = {
    "ruff check": ("ruff", "check", "--quiet"),
    "ruff format": ("ruff", "format", "--check", "--quiet"),
    "mypy": ("mypy", "--no-error-summary", "--num-workers", str(CORES)),
    "import-linter": ("lint-imports",),
}
# Of a run that this one is a test of; and what makes each of many brokers compile all its source.
NOT_HANDED_ON = ("PYTEST_XDIST", "PYTHONDONTWRITEBYTECODE")
PYTEST_ENDS = {0, 1}  # everything passed; something failed. The rest are errors of the run itself.


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test: `result` is passed, failed, skipped or expected (an expected failure)."""

    test: str
    result: str
    seconds: float
    reason: str = ""


@dataclass(slots=True)
class TierResult:
    """One tier: its tests, and what was wrong with the run itself."""

    name: str
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    trouble: str = ""

    def count(self, result: str) -> int:
        return sum(o.result == result for o in self.outcomes)


# --- reading what pytest reported ---------------------------------------------------------------


def merge(lines: Iterable[Mapping[str, Any]]) -> list[Outcome]:
    """One outcome a test from its set-up, call and tear-down: the worst of the three counts."""
    rank = ["passed", "expected", "skipped", "failed"]
    merged: dict[str, Outcome] = {}
    for line in lines:
        new = Outcome(line["test"], line["result"], line["seconds"], line["reason"])
        old = merged.get(new.test)
        if old is not None:
            worst = max(old, new, key=lambda o: rank.index(o.result))
            new = Outcome(new.test, worst.result, old.seconds + new.seconds, worst.reason)
        merged[new.test] = new
    return list(merged.values())


def unlisted_skips(outcomes: Iterable[Outcome], allowed: str) -> list[Outcome]:
    """Skips that no pattern of tests/allowed-skips.txt matches."""
    lines = (line.split("#")[0].strip() for line in allowed.splitlines())
    patterns = [line.replace("[", "[[]") for line in lines if line]  # test ids hold brackets
    return [
        o
        for o in outcomes
        if o.result == "skipped" and not any(fnmatch.fnmatchcase(o.test, p) for p in patterns)
    ]


def closing_line(results: Iterable[TierResult]) -> str:
    """The plain last line; trouble of a run counts as a failure so that it cannot be overseen."""
    tiers = list(results)
    passed, skipped = (sum(t.count(r) for t in tiers) for r in ("passed", "skipped"))
    failed = sum(t.count("failed") + bool(t.trouble) for t in tiers)
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def succeeded(results: Sequence[TierResult], unlisted: Sequence[Outcome], *, in_ci: bool) -> bool:
    """Whether the whole run counts as a success."""
    if any(t.trouble or t.count("failed") for t in results):
        return False
    if not any(t.count("passed") for t in results):
        return False
    return not (in_ci and unlisted)


# --- running ------------------------------------------------------------------------------------


def usual_tiers(scale: float) -> list[str]:
    """Which are run where none is named."""
    return [name for name in TIERS if scale > SCALE_DEFAULT or name not in AT_FULL_COUNTS]


def runs_of(tiers: Sequence[str]) -> list[tuple[str, ...]]:
    """The tiers in runs, in their order: one each, or those that go TOGETHER and are all there."""
    runs: list[tuple[str, ...]] = []
    for name in tiers:
        group = next((g for g in TOGETHER if name in g and set(g) <= set(tiers)), (name,))
        if group not in runs:
            runs.append(group)
    return runs


def parted(whole: TierResult, run: Sequence[str]) -> list[TierResult]:
    """A run's result as those of its tiers; each has as much of the time as its tests took."""
    if len(run) == 1:
        return [whole]
    paths = {path: name for name in run for path in KNOWN[name][0].split()}
    tiers = {name: TierResult(name) for name in run}
    for outcome in whole.outcomes:
        found = [path for path in paths if outcome.test.startswith(path)]
        tiers[paths[max(found, key=len)] if found else run[0]].outcomes.append(outcome)
    took = sum(o.seconds for o in whole.outcomes) or 1.0
    for tier in tiers.values():
        tier.seconds = whole.seconds * sum(o.seconds for o in tier.outcomes) / took
    tiers[run[0]].trouble = whole.trouble
    return list(tiers.values())


def has_tests(where: Path) -> bool:
    """Whether there is any test file; a tier that a later issue fills is simply not there."""
    return where.is_file() or any(where.rglob("test_*.py"))


def paths_of(where: str) -> list[str]:
    """The paths of a tier that there are; most have one."""
    return [path for path in where.split() if has_tests(ROOT / path)]


def spread_options(tier: str) -> Sequence[str]:
    """What makes pytest run a tier in several processes, if it may."""
    if tier not in SPREAD:
        return ()
    how = BY_TEST if tier in BY_TEST_TIERS else BY_FILE
    return ("-n", str(SPREAD[tier]), *how, *NO_SECOND_TRY)


def ignored(run: Sequence[str]) -> list[str]:
    """What lies in a folder of this run's, and is not in it."""
    own = {path for name in run for path in KNOWN[name][0].split()}
    return [path for name in run for path in APART.get(name, "").split() if path not in own]


def has_room(memory: Path) -> bool:
    """Whether there is a file system in memory that takes what tests write."""
    return os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES_MIN


def run_linters() -> TierResult:
    tier = TierResult("lint")
    for name, command in LINTERS.items():
        started = time.monotonic()
        done = subprocess.run(
            [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        result = "passed" if done.returncode == 0 else "failed"
        if result == "failed":
            print(f"--- {name}\n{done.stdout}{done.stderr}", flush=True)
        tier.outcomes.append(Outcome(f"lint::{name}", result, time.monotonic() - started))
    tier.seconds = sum(o.seconds for o in tier.outcomes)
    return tier


@dataclass(slots=True)
class PytestRun:
    """A run in a process group of its own, from `start` to `finish`.

    Attributes:
        name: the tier that says how, for those that go together.
        where: paths with tests, parted by spaces.
        seconds_max: it is ended as a group if it takes so long.
        memory: tests write below it instead of the usual place, if it is given.
        ignore: what lies in `where` and is not run.
        aside: another one runs meanwhile: it gets what that leaves, and prints when it has ended.
    """

    name: str
    where: str
    seconds_max: float
    seed: int
    memory: Path | None = None
    ignore: Sequence[str] = ()
    aside: bool = False
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0

    def start(self) -> None:
        """Nothing starts where there are no tests."""
        if not paths_of(self.where):
            return
        self._folder = tempfile.TemporaryDirectory(prefix="lapse-tests-", dir=self.memory)
        folder = Path(self._folder.name)
        self._started = time.monotonic()
        with (folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                self._command(folder), cwd=ROOT, env=self._environment(folder),
                start_new_session=True, stdout=output if self.aside else None,
                stderr=subprocess.STDOUT if self.aside else None,
            )  # fmt: skip
        if self.aside:
            yield_to_others(self._process.pid)

    def _command(self, folder: Path) -> Sequence[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--color=auto"]
        command += [*paths_of(self.where), f"--hypothesis-seed={self.seed}"]
        command += [f"--ignore={path}" for path in self.ignore]
        command += spread_options(self.name)
        command += [f"--basetemp={folder}/tests"] if self.memory else ()
        return command

    def _environment(self, folder: Path) -> Mapping[str, str]:
        outside = {k: v for k, v in os.environ.items() if not k.startswith(NOT_HANDED_ON)}
        told = {"LAPSE_TEST_REPORT": str(folder / REPORT), "LAPSE_TEST_SEED": str(self.seed)}
        if self.name in INNER:
            told["LAPSE_TEST_SLOW"] = "no"
        if self.name in SAME_ORDER:
            told["PYTHONHASHSEED"] = "0"
        if self.name in AT_FULL_COUNTS:
            told["LAPSE_TEST_FAST_REQUESTS"] = "false"
        if self.name == COVERED:
            told["LAPSE_COVERAGE"] = str(folder)
        return {**outside, **told}

    def finish(self) -> TierResult:
        """Wait for its end."""
        tier = TierResult(self.name)
        if self._process is None or self._folder is None:
            return tier
        code = -1
        with self._folder as named:
            try:
                left = self._started + self.seconds_max - time.monotonic()
                code = self._process.wait(timeout=max(0.0, left))
                if code not in PYTEST_ENDS:
                    tier.trouble = f"pytest ended with {code}"
            except subprocess.TimeoutExpired:
                tier.trouble = f"not done after {self.seconds_max:.0f} s"
            finally:
                end_group(self._process)
                self._process = None
            tier.seconds = time.monotonic() - self._started
            folder = Path(named)
            if self.aside:
                print((folder / "output").read_text(errors="replace"), flush=True)
            report = folder / REPORT
            lines = report.read_text().splitlines() if report.exists() else []
            if self.name == COVERED and not tier.trouble:
                tier.outcomes = judge_branches(folder)
        judge(tier, [json.loads(line) for line in lines], code)
        return tier

    def cancel(self) -> None:
        """End it, where it still runs, and leave nothing."""
        if self._process is not None and self._folder is not None:
            end_group(self._process)
            self._folder.cleanup()


def yield_to_others(pid: int) -> None:
    """Have a session just begun, and all that it will start, get what other sessions leave."""
    os.setpriority(os.PRIO_PROCESS, pid, ASIDE_NICE)
    group = Path(f"/proc/{pid}/autogroup")  # by which Linux weighs sessions, where it does so
    with contextlib.suppress(OSError):
        group.write_text(str(ASIDE_NICE))


def judge(tier: TierResult, reported: Sequence[Mapping[str, Any]], code: int) -> None:
    """Put what pytest reported into a tier, and what is wrong with that."""
    tier.outcomes = merge(line for line in reported if "test" in line) + tier.outcomes
    if not tier.trouble and not any("end" in line for line in reported):
        tier.trouble = "pytest ended before its tests did"
    if not tier.trouble and not tier.outcomes:
        tier.trouble = "reported no test"
    if not tier.trouble and code == 1 and not tier.count("failed"):
        tier.trouble = "pytest failed without a failed test"


def judge_branches(folder: Path) -> list[Outcome]:
    """Whether the tests took enough branches of what decides, and of what carries it out."""
    outcomes = []
    for package, percent in covered.percents(folder).items():
        print(f"branches of lifecycle/{package}: {percent} % ({covered.PERCENT_MIN:g} at least)")
        result = "passed" if percent >= covered.PERCENT_MIN else "failed"
        outcomes.append(Outcome(f"branches::{package}", result, 0.0, f"{percent} %"))
    return outcomes


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever a tier left running (brokers, JVMs) goes with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


# --- telling ------------------------------------------------------------------------------------


def print_summary(
    results: Sequence[TierResult], unlisted: Sequence[Outcome], seconds: float
) -> None:
    print(f"\n{'tier':14}{'passed':>8}{'failed':>8}{'skipped':>8}{'expected':>9}{'seconds':>9}")
    for tier in results:
        counts = [tier.count(r) for r in ("passed", "failed", "skipped", "expected")]
        if not tier.outcomes and not tier.trouble:
            continue
        cells = f"{counts[0]:>8}{counts[1]:>8}{counts[2]:>8}{counts[3]:>9}{tier.seconds:>9.1f}"
        print(f"{tier.name:14}{cells}  {tier.trouble}".rstrip())
    outcomes = [o for tier in results for o in tier.outcomes]
    print(f"\nslowest of {seconds:.0f} s:")
    for o in sorted(outcomes, key=lambda o: -o.seconds)[:SLOWEST_COUNT]:
        print(f"  {o.seconds:7.2f} s  {o.test}")
    for result in ("skipped", "failed"):
        for o in outcomes:
            if o.result == result:
                print(f"{result}: {o.test}  {o.reason}".rstrip())
    for o in unlisted:
        print(f"skip not listed in tests/allowed-skips.txt: {o.test}")


def commit() -> str:
    """What was tested; `+` marks uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def record(path: Path, results: Sequence[TierResult], *, scale: float, seed: int) -> None:
    """The torture run as JSON: enough to repeat it."""
    outcomes = [o for tier in results for o in tier.outcomes]
    tiers = {
        t.name: {
            "seconds": round(t.seconds, 1),
            **{r: t.count(r) for r in ("passed", "failed", "skipped", "expected")},
        }
        for t in results
        if t.outcomes or t.trouble
    }
    document = {
        "commit": commit(),
        "scale": scale,
        "seed": seed,
        "python": sys.version.split()[0],
        "result": closing_line(results),
        "tiers": tiers,
        "failed": [asdict(o) for o in outcomes if o.result == "failed"],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def pytest_run(run: Sequence[str], seed: int, scale: float, *, aside: bool = False) -> PytestRun:
    """How tiers that go together are run."""
    name, where = run[0], " ".join(KNOWN[tier][0] for tier in run)
    seconds_max = sum(4 * KNOWN[tier][1] * max(1.0, scale / SCALE_DEFAULT) for tier in run)
    in_memory = name in ALWAYS_IN_MEMORY or (name in IN_MEMORY and scale <= SCALE_DEFAULT)
    memory = MEMORY if in_memory and has_room(MEMORY) else None
    return PytestRun(name, where, seconds_max, seed, memory, ignored(run), aside)


def groups_of(runs: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Each run with those that go BESIDE it, when the first of them has its turn."""
    leaders = {run[0] for run in runs}
    groups: dict[str, list[Sequence[str]]] = {}
    for run in runs:
        beside = BESIDE.get(run[0])
        leader = beside if beside in leaders else run[0]
        groups.setdefault(leader, []).append(run)
    return [sorted(group, key=lambda run: run[0] != leader) for leader, group in groups.items()]


def results_of(
    runs: Sequence[Sequence[str]], seed: int, scale: float
) -> Iterator[list[TierResult]]:
    """All runs, one after the other, but for those that go BESIDE another one."""
    for run, *asides in groups_of(runs):
        together = [run, *asides]
        if run[0] == "lint" or paths_of(" ".join(KNOWN[tier][0] for tier in run)):
            said = ", beside it ".join(" ".join(one) for one in together)
            print(f"=== {said} (scale {scale:g}, seed {seed})", flush=True)
        if run[0] == "lint":
            yield [run_linters()]
            continue
        started = [pytest_run(one, seed, scale, aside=one is not run) for one in together]
        for one in started[1:]:
            one.seconds_max += started[0].seconds_max
        try:
            for one in started:
                one.start()
            yield [
                tier for one, names in zip(started, together, strict=True)
                for tier in parted(one.finish(), names)
            ]  # fmt: skip
        finally:
            for one in started:
                one.cancel()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run tiers of tests.")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {' '.join(TIERS)}")
    parser.add_argument("--record", type=Path, help="draw a new seed and write results here")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.tiers if name not in KNOWN]
    if unknown:
        parser.error(f"no tier {' '.join(unknown)}: choose from {' '.join(TIERS)}")
    scale = float(os.environ.get("LAPSE_TEST_SCALE") or SCALE_DEFAULT)
    drawn = secrets.randbelow(1 << 31) if options.record else SEED_DEFAULT
    seed = int(os.environ.get("LAPSE_TEST_SEED") or drawn)
    started, results = time.monotonic(), []
    for tiers in results_of(runs_of(options.tiers or usual_tiers(scale)), seed, scale):
        results += tiers
        if options.record:  # after each: a run of hours that is cut short keeps what it has
            record(options.record, results, scale=scale, seed=seed)
    outcomes = [o for tier in results for o in tier.outcomes]
    unlisted = unlisted_skips(outcomes, (TESTS / "allowed-skips.txt").read_text())
    print_summary(results, unlisted, time.monotonic() - started)
    print(closing_line(results), flush=True)
    return 0 if succeeded(results, unlisted, in_ci=os.environ.get("CI") == "true") else 1


if __name__ == "__main__":
    sys.exit(main())
