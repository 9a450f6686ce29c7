"""Fixtures every tier shares, the tier markers, and the report that tools/run_tests.py reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from tests import combinations, covered, time_limits  # isort: skip  (covered before anything of Lapse)
from lapse.testing.warm import warm
from tests.oracle import kafka
from tests.oracle.oracle import Oracle, unpack, unpack_cases

for _name in ("LAPSE_BOOTSTRAP_SERVER", "LAPSE_COMMAND_CONFIG"):
    os.environ.pop(_name, None)  # of somebody's own cluster: commands in tests would go there

SCALE = float(os.environ.get("LAPSE_TEST_SCALE") or 0.05)
TESTS = Path(__file__).parent


def scaled_count(full: int) -> int:
    """A test's full count times SCALE, never below one."""
    return max(1, round(full * SCALE))


hypothesis.settings.register_profile(
    "lapse",
    deadline=None,  # two shared cores: no timed assertions
    max_examples=max(10, scaled_count(1000)),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("lapse")


# --- tiers and the report ------------------------------------------------------------------------


# Files that take longest come first, so that the processes a tier is spread over end together.
BEGUN_FIRST = {
    file: rank
    for rank, file in enumerate(
        (
            "test_tidy.py",
            "spark/test_actions.py",
            "spark/test_cluster.py",
            "spark/test_speculation.py",
            "spark/test_chaos.py",
            "spark/test_export.py",
            "spark/test_demo.py",
            "spark/test_copy.py",
            "spark/test_connector_streams.py",
            "spark/test_demo_fails.py",
            "spark/test_on_demand.py",
            "spark/test_strangers.py",
            "spark/test_source_killed.py",
            "spark/test_restarts.py",
            "chaos/test_chaos.py",
            "chaos/test_plants.py",
            "compat/test_cluster_repaired.py",
            "compat/test_cluster_disks.py",
            "compat/test_killed_producers.py",
            "compat/test_cluster_of_three.py",
            "compat/test_cluster_clock.py",
            "compat/test_kept_directories.py",
            "compat/test_cluster_network.py",
            "compat/test_java_programs.py",
            "compat/test_cluster_of_one.py",
            "compat/test_cluster_killed.py",
            "compat/test_other_languages.py",
            "compat/test_cluster_levels.py",
            "compat/test_cluster_tombstones.py",
            "compat/test_how_tos.py",
            "compat/test_quickstart.py",
            "compat/test_adopt.py",
            "compat/test_cluster_reassigned.py",
            "compat/test_up.py",
            "compat/test_beside_kafka.py",
            "compat/test_zookeeper.py",
            "compat/test_bad_peers.py",
            "compat/test_transactions.py",
            "compat/test_up_cluster.py",
            "fuzz/test_fuzz.py",
            "oracle/test_to_kafka.py",
            "oracle/test_other_way.py",
            "crash/test_a_day.py",
            "crash/test_commit.py",
            "hostile/test_restarts.py",
            "hostile/test_neighbour.py",
            "crash/test_groups.py",
            "unit/tools/mutants/test_session.py",
            "unit/tools/test_run_tests.py",
            "unit/cli/test_main_extras.py",
            "property/test_rewrite.py",
            "property/test_kernels.py",
            "unit/wire/test_codec.py",
            "unit/broker/net/test_dispatch.py",
            "unit/broker/net/test_authorization.py",
        )
    )
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each has its tier as a marker: the folder it lives in, else `tidy`. Long ones first."""
    left = set(_left_to_torture(items)) if SCALE < 1 else set()
    if SCALE < 1:
        long = {f"tests/{name}" for name in listed_in("long.txt")}
        left.update(item for item in items if item.nodeid in long)
    if os.environ.get("LAPSE_TEST_SLOW") == "no":
        slow = {f"tests/{name}" for name in listed_in("slow.txt")}
        left.update(item for item in items if item.nodeid.partition("[")[0] in slow)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]
    for item in items:
        item.add_marker(_tier_of(item.path))
    items.sort(key=lambda item: _rank_of(item.path))


def _left_to_torture(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Combinations whose values come in others."""
    tests: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(combinations.MARK):
            tests[item.nodeid.partition("[")[0]].append(item)
    for same in tests.values():
        chosen = combinations.every_value_once([item.callspec.params for item in same])
        yield from (item for item, is_chosen in zip(same, chosen, strict=True) if not is_chosen)


def listed_in(name: str) -> list[str]:
    """What `make check` leaves to `make test` (slow.txt), and that to `make torture` (long.txt)."""
    lines = (TESTS / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="session", autouse=True)
def _warm() -> Iterator[None]:
    """Brokers start at once; that they start from nothing, too, compat/test_up sees."""
    with warm():
        yield


@cache
def _rank_of(path: Path) -> int:
    return BEGUN_FIRST.get(path.relative_to(TESTS).as_posix(), len(BEGUN_FIRST))


@cache
def _tier_of(path: Path) -> str:
    tier, _, rest = path.relative_to(TESTS).as_posix().partition("/")
    return tier if rest else "tidy"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What no signal interrupts ends the process; once a test, for it costs a thread."""
    parts_seconds = 3 * time_limits.limit_seconds(_tier_of(item.path), SCALE)
    with time_limits.ended_after(parts_seconds + time_limits.GRACE_SECONDS):
        return (yield)


def _limited(item: pytest.Item, part: str) -> Iterator[None]:
    limit_seconds = time_limits.limit_seconds(_tier_of(item.path), SCALE)
    with time_limits.limited(limit_seconds, f"{part} {item.nodeid}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Within the tier's limit, as the two others are."""
    return (yield from _limited(item, "setting up"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item, "running"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item, "tearing down"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    result: str = report.outcome
    if hasattr(report, "wasxfail") and report.skipped:
        result = "expected"
    _report(report, result, report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _report(report, report.outcome, 0.0)


def pytest_sessionfinish(exitstatus: int) -> None:
    """The last line: without it, the process died on the way, whatever its exit code."""
    covered.end()
    _write({"end": int(exitstatus)})


def _report(report: pytest.TestReport | pytest.CollectReport, result: str, seconds: float) -> None:
    """One JSON line a phase of a test, where tools/run_tests.py asked for it."""
    reason = ""
    if result == "skipped" and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
    _write({"test": report.nodeid, "result": result, "seconds": seconds, "reason": reason})


def _write(line: dict[str, object]) -> None:
    path = os.environ.get("LAPSE_TEST_REPORT")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:  # its reports come to the one that leads
        with open(path, "a") as f:
            f.write(json.dumps(line) + "\n")


# --- counts and seeds ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def scaled() -> Callable[[int], int]:
    """`scaled(n)`: the full count n in `make torture`, a twentieth of it in `make test`."""
    return scaled_count


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own; the run's seed is LAPSE_TEST_SEED, printed and recorded."""
    run_seed = int(os.environ.get("LAPSE_TEST_SEED") or 20130101)
    return zlib.crc32(f"{run_seed}:{request.node.nodeid}".encode())


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, for what a file system in memory cannot do: `tmp_path` may be on one."""
    with tempfile.TemporaryDirectory(prefix="lapse-disk-") as folder:
        yield Path(folder)


# --- real Kafka ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def oracle_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked cases that real Kafka's cleaner judged; needs no JVM. Copy before changing."""
    return unpack_cases(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked files that real Kafka wrote (tests/golden/README.md). Copy before opening."""
    into = tmp_path_factory.mktemp("goldens")
    unpack(TESTS / "golden" / "real-kafka-4.3.1.tar.xz", into)
    return into


@pytest.fixture(scope="session")
def kafka_jars() -> str:
    """The classpath of real Kafka and the oracle; resolved and compiled at most once."""
    lacking = [
        command for command in ("java", "javac", "mvn", "unzip") if not shutil.which(command)
    ]
    if lacking:
        pytest.skip(f"real Kafka needs {' and '.join(lacking)} (make deps installs them)")
    return kafka.classpath()


@pytest.fixture(scope="session")
def oracle(kafka_jars: str) -> Iterator[Oracle]:
    """Real Kafka's cleaner in one JVM for the whole session."""
    with Oracle() as running:
        yield running


@pytest.fixture(scope="session")
def kafka_tools(kafka_jars: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`kafka_tools("DumpLogSegments", ["--files", …])`: run a class of real Kafka to its end."""
    return kafka.run_tool


@pytest.fixture
def real_kafka(kafka_jars: str, tmp_path: Path) -> Iterator[kafka.RealKafka]:
    """A real broker on free ports, one to a test (4 s): a peer, not for unit tests."""
    with kafka.RealKafka(tmp_path / "real-kafka", flags=kafka.QUICK_FLAGS) as running:
        yield running
