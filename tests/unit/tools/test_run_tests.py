"""The runner of tests cannot call a failure a success; real pytest runs over small folders."""

from __future__ import annotations

import json
import os
import select
from pathlib import Path

import pytest

from tests.conftest import BEGUN_FIRST
from tools import run_tests
from tools.run_tests import MACHINERY, Outcome, TierResult

CONFTEST = (Path(__file__).resolve().parents[2] / "conftest.py").read_text()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one tier, `tests/unit`, with our own conftest and settings."""
    (tmp_path / "tests" / "crash").mkdir(parents=True)
    (tmp_path / "tests" / "oracle").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    for name in (
        "combinations.py",
        "covered.py",
        "time_limits.py",
        "long.txt",
        "oracle/oracle.py",
        "oracle/kafka.py",
    ):
        (tmp_path / "tests" / name).write_text(
            (Path(__file__).resolve().parents[2] / name).read_text()
        )
    settings = (run_tests.ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "tests" / "allowed-skips.txt").write_text("# none\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "TESTS", tmp_path / "tests")
    monkeypatch.setattr(run_tests, "SPREAD", {})
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def run(repository: Path, code: str, *, seconds_max: float = 60) -> TierResult:
    (repository / "tests" / "crash" / "test_x.py").write_text(code)
    return run_crash(seconds_max)


def run_crash(seconds_max: float = 60, seed: int = 7, memory: Path | None = None) -> TierResult:
    one = run_tests.PytestRun("crash", "tests/crash", seconds_max, seed, memory)
    one.start()
    return one.finish()


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip().splitlines()[-1]


KINDS = """
import warnings, pytest
def test_good(): pass
def test_bad(): assert 0
def test_skipped(): pytest.skip("no mvn here")
@pytest.mark.xfail(reason="later")
def test_expected(): assert 0
@pytest.mark.xfail(reason="later")
def test_unexpectedly_good(): pass
def test_warns(): warnings.warn("old")
@pytest.fixture
def broken(): yield; raise OSError("tear-down")
def test_tear_down(broken): pass
def test_seed(seed, scaled): assert scaled(1) == 1 and isinstance(seed, int)
def test_tier(request): assert request.node.get_closest_marker("crash")
"""


def test_every_kind_of_result_is_counted(repository: Path) -> None:
    tier = run(repository, KINDS)
    results = {o.test.split("::")[1]: o.result for o in tier.outcomes}
    assert results == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_skipped": "skipped",
        "test_expected": "expected",
        "test_unexpectedly_good": "failed",
        "test_warns": "failed",
        "test_tear_down": "failed",
        "test_seed": "passed",
        "test_tier": "passed",
    }
    assert [o.reason for o in tier.outcomes if o.result == "skipped"] == ["no mvn here"]
    assert tier.trouble == ""
    assert run_tests.closing_line([tier]) == "3 passed, 4 failed, 1 skipped"


@pytest.mark.parametrize(
    "code",
    [
        "import nothing_of_that_name",
        "import os\ndef test_a(): pass\ndef test_x(): os._exit(0)",
        "def helper(): pass",
    ],
)
def test_a_run_that_ends_oddly_is_a_failure(repository: Path, code: str) -> None:
    tier = run(repository, code)
    assert not run_tests.succeeded([tier], [], in_ci=False)
    assert " 0 failed" not in run_tests.closing_line([tier])


def test_a_tier_in_several_processes_tells_which_test_one_died_with(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "SPREAD", {"crash": 2})
    runs = repository / "runs"
    dies = f"import os\ndef test_dies(): open({str(runs)!r}, 'a').write('x'); os._exit(0)\n"
    (repository / "tests" / "crash" / "test_y.py").write_text(dies)
    tier = run(repository, "def test_good(): pass\n")
    found = {o.test.split("::")[1]: o.result for o in tier.outcomes}
    assert runs.read_text() == "x"  # it is not tried again, to kill the next one
    assert found["test_dies"] == "failed"
    assert found.get("test_good", "passed") == "passed"
    assert not run_tests.succeeded([tier], [], in_ci=False)


def test_files_of_tests_go_where_there_is_memory(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are gone afterwards; byte code is kept, whatever was set outside."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (repository / "memory").mkdir()
    code = f"""
import sys
def test_x(tmp_path):
    assert tmp_path.is_relative_to({str(repository / "memory")!r})
    assert not sys.dont_write_bytecode
"""
    (repository / "tests" / "crash" / "test_x.py").write_text(code)
    memory = repository / "memory"
    tier = run_crash(memory=memory)
    assert run_tests.closing_line([tier]) == "1 passed, 0 failed, 0 skipped"
    assert list(memory.iterdir()) == []


def test_tiers_go_together_where_all_are_asked_for() -> None:
    runs = run_tests.runs_of(
        ["lint", "tidy", "unit", "lifecycle", "property", "machinery", "golden"]
    )
    together = ("tidy", "unit", "property", "machinery", "golden")
    assert runs == [("lint",), together, ("lifecycle",)]
    assert run_tests.runs_of(["tidy", "unit"]) == [("tidy",), ("unit",)]
    assert run_tests.ignored(together) == ["tests/unit/lifecycle"]
    assert set(run_tests.ignored(["unit"])) == {"tests/unit/lifecycle", *MACHINERY.split()}


def test_what_goes_beside_another_one_has_its_turn_with_it() -> None:
    runs = [("lint",), ("tidy", "unit"), ("crash",), ("chaos",)]
    assert run_tests.groups_of(runs) == [
        [("lint",)], [("chaos",), ("tidy", "unit")], [("crash",)]
    ]  # fmt: skip
    assert run_tests.groups_of(runs[:3]) == [[run] for run in runs[:3]]


def test_each_tier_of_a_run_gets_its_own_tests() -> None:
    names = [
        "tests/test_tidy.py::test_a",
        "tests/unit/base/test_b.py::test_b",
        "tests/unit/kernels/test_jit.py::test_c",
        "somewhere",
    ]
    whole = TierResult("tidy", 8.0, [Outcome(name, "passed", 1.0) for name in names], "odd")
    found = run_tests.parted(whole, ("tidy", "unit", "machinery"))
    assert [[o.test for o in tier.outcomes] for tier in found] == [
        [names[0], names[3]], [names[1]], [names[2]]
    ]  # fmt: skip
    assert [(tier.name, tier.seconds, tier.trouble) for tier in found] == [
        ("tidy", 4.0, "odd"), ("unit", 2.0, ""), ("machinery", 2.0, "")
    ]  # fmt: skip


def test_one_that_waits_runs_beside_another(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits here for what the other one does; what it printed comes in one piece."""
    monkeypatch.setattr(run_tests, "BESIDE", {"crash": "oracle"})
    code = """
import os, pathlib, time
def test_x():
    pathlib.Path({mine!r}).write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
    while not pathlib.Path({theirs!r}).exists():
        time.sleep(0.01)
"""
    names = [str(repository / "one"), str(repository / "other")]
    for folder, (mine, theirs) in {"crash": names, "oracle": names[::-1]}.items():
        text = code.format(mine=mine, theirs=theirs)
        (repository / "tests" / folder / f"test_{folder}.py").write_text(text)
    assert run_tests.main(["crash", "oracle"]) == 0
    nice = [int(Path(name).read_text()) for name in names]
    assert nice == [run_tests.ASIDE_NICE, os.getpriority(os.PRIO_PROCESS, 0)]
    said = capfd.readouterr().out
    assert "=== oracle, beside it crash (scale" in said
    assert said.count("1 passed in") == 2
    assert said.rstrip().endswith("2 passed, 0 failed, 0 skipped")


def test_one_beside_another_that_is_given_up_goes_with_it(repository: Path) -> None:
    (repository / "tests" / "crash" / "test_x.py").write_text(
        "import time\ndef test_x(): time.sleep(600)\n"
    )
    one = run_tests.PytestRun("crash", "tests/crash", 60, 7, aside=True)
    one.start()
    process, folder = one._process, one._folder
    assert process is not None
    assert folder is not None
    one.cancel()
    assert process.returncode is not None
    assert not Path(folder.name).exists()


def test_every_file_that_is_begun_first_is_there() -> None:
    assert [file for file in BEGUN_FIRST if not (run_tests.TESTS / file).is_file()] == []


def test_a_hang_is_ended_with_all_it_started(repository: Path) -> None:
    pid_file = repository / "pid"
    code = f"""
import subprocess, time
def test_hangs():
    child = subprocess.Popen(["sleep", "1000"])
    open({str(pid_file)!r}, "w").write(str(child.pid))
    time.sleep(1000)
"""
    tier = run(repository, code, seconds_max=5)
    assert "not done after" in tier.trouble
    assert ends(int(pid_file.read_text()))


def ends(pid: int) -> bool:
    """What was killed is gone once it had a turn to die in: a busy machine gives it one later."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        return bool(waiting.poll(30_000))
    finally:
        os.close(watched)


def test_one_that_takes_too_long_fails_and_the_others_run(repository: Path) -> None:
    limits = repository / "tests" / "time_limits.py"
    limits.write_text(limits.read_text().replace("OTHERS_SECONDS = 900.0", "OTHERS_SECONDS = 0.5"))
    code = """
import threading, pytest
def test_hangs(): threading.Event().wait()
@pytest.fixture
def stuck(): yield; threading.Event().wait()
def test_tear_down(stuck): pass
def test_good(): pass
"""
    tier = run(repository, code)
    assert (tier.count("failed"), tier.count("passed"), tier.trouble) == (2, 1, "")


def test_a_folder_without_tests_is_no_tier(repository: Path) -> None:
    tier = run_crash()
    assert (tier.outcomes, tier.trouble) == ([], "")
    assert not run_tests.succeeded([tier], [], in_ci=False)  # nothing ran at all


def test_a_skip_fails_in_ci_unless_listed(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "tests" / "crash" / "test_x.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_skipped(): pytest.skip('no mvn')\n"
    )
    monkeypatch.setenv("CI", "true")
    assert run_tests.main(["crash"]) == 1
    printed = capsys.readouterr().out
    assert printed.strip().splitlines()[-1] == "1 passed, 0 failed, 1 skipped"
    assert "skipped: tests/crash/test_x.py::test_skipped  no mvn" in printed
    assert "not listed in tests/allowed-skips.txt: tests/crash/test_x.py::test_skipped" in printed
    allowed = "tests/crash/test_x.py::test_s*  # because\n"
    (repository / "tests" / "allowed-skips.txt").write_text(allowed)
    assert run_tests.main(["crash"]) == 0


@pytest.mark.parametrize(("in_ci", "success"), [(True, False), (False, True)])
def test_only_ci_minds_unlisted_skips(in_ci: bool, success: bool) -> None:
    skip = Outcome("b", "skipped", 0)
    tier = TierResult("unit", 1.0, [Outcome("a", "passed", 0), skip])
    assert run_tests.succeeded([tier], [skip], in_ci=in_ci) == success


def test_a_module_that_skips_itself_is_seen(repository: Path) -> None:
    tier = run(repository, "import pytest\npytest.importorskip('nothing_of_that_name')\n")
    assert [o.result for o in tier.outcomes] == ["skipped"]


def test_brackets_in_an_allowed_skip_are_plain() -> None:
    skip = Outcome("tests/a.py::test_b[c]", "skipped", 0)
    assert run_tests.unlisted_skips([skip], "tests/a.py::test_b[c] # reason") == []
    assert run_tests.unlisted_skips([skip], "tests/a.py::test_bc") == [skip]


def test_a_record_is_enough_to_repeat_the_run(tmp_path: Path) -> None:
    tier = TierResult("unit", 1.23, [Outcome("a", "passed", 1.0), Outcome("b", "failed", 0.2)])
    run_tests.record(tmp_path / "torture.json", [tier], scale=1.0, seed=99)
    recorded = json.loads((tmp_path / "torture.json").read_text())
    assert (recorded["seed"], recorded["scale"]) == (99, 1.0)
    assert recorded["result"] == "1 passed, 1 failed, 0 skipped"
    assert recorded["tiers"]["unit"]["seconds"] == 1.2
    assert set(recorded) >= {"commit", "python", "failed"}


def test_an_unknown_tier_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        run_tests.main(["no-such-tier"])
    assert raised.value.code == 2
    assert "no tier no-such-tier" in capsys.readouterr().err


def test_the_run_seed_reaches_the_tests(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = repository / "seen"
    code = f"def test_x(seed): open({str(seen)!r}, 'a').write(str(seed) + chr(10))"
    for run_seed in (1, 2):
        (repository / "tests" / "crash" / "test_x.py").write_text(code)
        run_crash(seed=run_seed)
    first, second = seen.read_text().split()
    assert first != second


COMBINED = """
import pytest
@pytest.mark.combined
@pytest.mark.parametrize("a", [print, len, [1]], ids=["print", "len", "list"])
@pytest.mark.parametrize("b", [True, False])
def test_both(a, b): pass
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2])
def test_all(a, b): pass
"""


@pytest.mark.parametrize(("scale", "both"), [("0.05", 3), ("1", 6)])
def test_not_every_combination_is_run_before_torture(
    repository: Path, monkeypatch: pytest.MonkeyPatch, scale: str, both: int
) -> None:
    monkeypatch.setenv("LAPSE_TEST_SCALE", scale)
    names = [o.test.split("::")[1] for o in run(repository, COMBINED).outcomes]
    assert len([name for name in names if name.startswith("test_all")]) == 4
    combined = [name for name in names if name.startswith("test_both")]
    assert len(combined) == both
    if both == 3:
        wanted = {"test_both[True-print]", "test_both[False-len]", "test_both[True-list]"}
        assert set(combined) == wanted


@pytest.mark.parametrize(("scale", "left"), [("0.05", {"test_all[1-2]"}), ("1", set())])
def test_what_is_long_is_left_to_torture(
    repository: Path, monkeypatch: pytest.MonkeyPatch, scale: str, left: set[str]
) -> None:
    monkeypatch.setenv("LAPSE_TEST_SCALE", scale)
    name = "crash/test_x.py::test_all"
    (repository / "tests" / "long.txt").write_text(f"# why\n{name}[1-2]\n{name}[1-3]\n")
    names = {o.test.split("::")[1] for o in run(repository, COMBINED).outcomes}
    assert {f"test_all[{b}-{a}]" for a in (1, 2) for b in (1, 2)} - names == left


def test_some_tiers_are_run_at_full_counts_only() -> None:
    assert set(run_tests.TIERS) - set(run_tests.usual_tiers(0.05)) == {"readable"}
    assert run_tests.usual_tiers(1) == list(run_tests.TIERS)
