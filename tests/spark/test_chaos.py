"""Everything dies at random while records are written: the bytes are those of a quiet day.

Workers, the daemons that fork them, executors and drivers get `kill -9`, and jobs are cancelled, in
the middle of rounds over small logs and a split one. Whatever was committed must be what the same
plan gives in one process without any trouble; nothing newer is lost; nothing is left lying about.

A case is named by its number and the run's seed: LAPSE_TEST_SEED and the test's id repeat it.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from pyspark import SparkContext

from lapse.lifecycle.round.engine import EngineLost
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.run import Run, receipts_of
from lapse.spark.rounds.engine import SparkEngine
from tests.conftest import scaled_count
from tests.spark import processes
from tests.spark.chaotic import KINDS, RETENTION_MS, House, replayed
from tests.spark.driver import DriverProcess
from tests.spark.processes import needs_proc

pytestmark = pytest.mark.usefixtures("mended")

CLUSTER = "local-cluster[2,1,1024]"
# By the number of the case; None is the session that all tests share, whose driver lives on.
MASTERS = (CLUSTER, None, "local[2]", None)
NUMBERS = sorted(range(scaled_count(50)), key=lambda n: MASTERS.index(MASTERS[n % len(MASTERS)]))
# What comes first in a case, and what after it.
FIRST = {None: "worker", "local[2]": "driver", CLUSTER: "executor"}
STRIKES = {
    None: ("worker", "worker", "daemon", "cancel"),
    "local[2]": ("worker", "daemon", "cancel", "driver"),
    CLUSTER: ("worker", "daemon", "cancel", "executor", "driver"),
}
STRIKES_MAX = 2  # in one run
STRIKES_MIN = (1, 1)  # before the clock moves, and after
RUNS_MAX = 20
GAP_SECONDS_MAX = 1.0
SPLIT_SHARE = 0.7  # of the runs are struck over the split plan, which takes longer
# What a run may come to that was disturbed.
EXPECTED = re.compile(
    r"cancelled$|: the Spark job failed: |workers died over this log$|^the driver has ended"
)


class Driver(Protocol):
    """Whoever runs rounds.

    Attributes:
        pid: of the process below which all the others are.
    """

    pid: int

    def run(self, plans: Sequence[RoundPlan]) -> Iterator[Receipt]: ...

    def cancel(self) -> None: ...


class InSession:
    """The session that all tests share."""

    def __init__(self, engine: SparkEngine) -> None:
        assert SparkContext._gateway is not None
        self.pid = SparkContext._gateway.proc.pid
        self._engine = engine
        self._run: Run[Receipt] | None = None

    def run(self, plans: Sequence[RoundPlan]) -> Iterator[Receipt]:
        self._run = self._engine.submit(plans)
        return receipts_of(self._run)

    def cancel(self) -> None:
        if self._run is not None:
            self._run.cancel()


@dataclass
class Drivers:
    """The driver in office; of one that is killed the session that all share is the successor."""

    engine: SparkEngine
    folder: Path
    master: str | None = None
    process: DriverProcess | None = None
    killed: list[DriverProcess] = field(default_factory=list)

    def on(self, master: str | None) -> Driver:
        if master is None:
            return InSession(self.engine)
        if self.process is None or master != self.master:
            self.end()
            self.master = master
            self.process = DriverProcess(master, self.folder / "driver.log")
        return self.process

    def replace(self) -> Driver:
        """Its predecessor's tasks may be at work yet."""
        assert self.process is not None
        self.process.end()
        self.killed.append(self.process)
        self.process = None
        return self.on(None)

    def wait_for_killed(self) -> None:
        """Until nothing is left of them."""
        while self.killed:
            self.killed.pop().wait_until_gone()

    def end(self) -> None:
        if self.process is not None:
            self.replace()
        self.wait_for_killed()


@pytest.fixture(scope="module")
def drivers(engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(engine, tmp_path_factory.mktemp("drivers"))
    yield made
    made.end()


def strike(kind: str, driver: Driver, chance: random.Random) -> None:
    if kind == "cancel":
        driver.cancel()
        return
    found = {
        "worker": processes.worker_pids,
        "daemon": processes.daemon_pids,
        "executor": processes.executor_pids,
        "driver": processes.with_children,
    }[kind](driver.pid)
    some = sorted(found)
    most = 1 if kind == "executor" else len(some)  # each takes seconds to be there again
    processes.kill(chance.sample(some, chance.randint(1, most)) if some else ())


@contextmanager
def striking(
    kinds: Sequence[str], driver: Driver, plans: Sequence[RoundPlan], chance: random.Random
) -> Iterator[list[str]]:
    """From when a task has begun with one of the plans; yields what was done so far."""
    split = [plan for plan in plans if plan.split is not None]
    some = split if split and chance.random() < SPLIT_SHARE else plans
    folders = [attempt_dir(Path(plan.dir), plan.round_id, "") for plan in some]
    end, done = threading.Event(), list[str]()

    def work() -> None:
        while not any(folder.exists() for folder in folders):
            if end.wait(0.005):
                return
        for kind in kinds:
            if end.wait(chance.uniform(0, GAP_SECONDS_MAX)):
                return
            strike(kind, driver, chance)
            done.append(kind)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()


def carry_out(house: House, driver: Driver, plans: Sequence[RoundPlan]) -> list[str]:
    """As the service does: commit what comes; why nothing came of the others."""
    by_id = {plan.round_id: plan for plan in plans}
    errors = []
    try:
        for receipt in driver.run(plans):
            if receipt.error is None:
                house.commit(by_id[receipt.round_id], receipt)
            else:
                house.owner.commit([receipt])
                errors.append(receipt.error)
    except EngineLost as e:
        errors.append(str(e))
    return errors


class Case:
    """One house and whoever cleans it."""

    def __init__(self, house: House, drivers: Drivers, master: str | None, seed: int) -> None:
        self.house, self.drivers, self.master = house, drivers, master
        self.chance = random.Random(seed)
        self.driver = drivers.on(master)
        self.runs = 0
        self.struck: list[str] = []

    def disturbed(self) -> None:
        """A run, and what happens to it."""
        house, kinds = self.house, self._kinds()
        house.hurries = False
        plans = self._plans()
        with striking(kinds, self.driver, plans, random.Random(self.chance.random())) as struck:
            errors = carry_out(house, self.driver, plans)
        print(f"run {self.runs}: {struck} {errors}")  # noqa: T201 - shown where the test fails
        assert struck or not errors, errors
        assert all(EXPECTED.search(error) for error in errors), errors
        self.struck += struck
        if "driver" in struck:
            self.driver, self.master = self.drivers.replace(), None
            house.owner.sweep()  # as a broker does when a new service comes

    def quiet(self) -> None:
        """Nobody writes and nobody strikes: everything that is due is done."""
        self.house.hurries = True
        while plans := self._plans():
            errors = carry_out(self.house, self.driver, plans)
            assert not errors, (self.struck, errors)

    def _plans(self) -> list[RoundPlan]:
        self.runs += 1
        assert self.runs < RUNS_MAX, "no task was at work when it was struck"
        return self.house.plans(f"r{self.runs}")

    def _kinds(self) -> list[str]:
        """Nothing comes after the driver's end."""
        kinds = self.chance.choices(STRIKES[self.master], k=self.chance.randint(1, STRIKES_MAX))
        if not self.struck:
            kinds[0] = FIRST[self.master]
        return kinds[: kinds.index("driver") + 1] if "driver" in kinds else kinds


@needs_proc
@pytest.mark.parametrize("number", NUMBERS)
def test_what_dies_at_random_leaves_the_bytes_of_a_quiet_day(
    number: int, seed: int, drivers: Drivers, disk_path: Path
) -> None:
    house = House(disk_path / "data", seed)
    case = Case(house, drivers, MASTERS[number % len(MASTERS)], seed)
    for name, kind in KINDS.items():
        for _ in range(kind.first_steps):
            house.step(name)
    for strikes_min in STRIKES_MIN:
        house.clock.advance(2 * RETENTION_MS)
        began_ms, before = house.clock.now_ms(), len(case.struck)
        with house.writing(random.Random(seed)):
            while len(case.struck) < before + strikes_min:
                case.disturbed()
        case.quiet()
    drivers.wait_for_killed()
    house.sweep()
    house.close()
    house.require_nothing_lost(began_ms)
    twin = replayed(house, disk_path / "twin")
    twin.close()
    house.require_same(twin)
