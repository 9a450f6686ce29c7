"""A small project with good and poor tests, from end to end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tools.mutants import job, report
from tools.run_tests import ROOT

MODULE = """
LIMIT = 3

left = LIMIT
while left:
    left -= 1


def is_full(n):
    return n > LIMIT


def halves(n):
    while n > 1:
        n //= 2
    return n


def nobody_asks(n):
    return n + 1
"""
TESTS = """
import hypothesis

hypothesis.settings.register_profile("lapse", hypothesis.settings())
from lapse_sample import noun


def test_full():
    assert noun.is_full(9) and not noun.is_full(2)


def test_halves():
    assert noun.halves(8) == 1


def test_fails_already():
    assert noun.is_full(1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path, text in {
        "src/lapse_sample/noun.py": MODULE,
        "src/lapse_sample/__init__.py": "",
        "tests/test_noun.py": TESTS,
        "work/nothing": "",
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['src']\n",
        "tests/conftest.py": textwrap.dedent("""
            import hypothesis
            hypothesis.settings.register_profile("lapse", hypothesis.settings())
        """),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def run(project: Path) -> dict[str, job.Result]:
    module = project / "src/lapse_sample/noun.py"
    settings = job.Settings(
        str(project / "work"),
        tests=["tests/test_noun.py"],
        paths=[str(module)],
        mutants=job.mutants_of(project / "src", [module]),
        budget_seconds=9,
        at_a_time=2,
        examples=5,
    )
    job.write(project / "settings.json", dataclasses.asdict(settings))
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tools.mutants import fresh, job, session
        assert session.main("settings.json", "1") == 0
        settings = job.settings_from(Path("settings.json"))
        covered = job.covered_from(Path("work/covered.json"))
        rest = [m for m in settings.mutants if m.outermost is None]
        for name in [n for n in sys.modules if n.startswith(("lapse_sample", "test"))]:
            del sys.modules[name]
        fresh.IMPORT_SECONDS = 0.5
        fresh.try_mutants(rest, settings, covered)
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return job.read_results(project / "work" / "results.jsonl")


def test_what_tests_notice_is_killed_and_the_rest_is_told(project: Path) -> None:
    results = run(project)
    outcomes = {key.partition(":")[2]: r.outcome for key, r in results.items()}
    assert outcomes == {
        "<module> constant 1": "survived",  # nobody asks at the border
        "<module> negate 1": "survived",
        "<module> drop 1": "time",  # while it is imported
        "<module> constant 2": "time",  # past 0
        "is_full return 1": "killed",
        "is_full compare 1": "survived",
        "halves compare 1": "killed",
        "halves drop 1": "time",
        "halves constant 1": "killed",
        "halves constant 2": "killed",
        "halves return 1": "killed",
        "nobody_asks return 1": "unreached",
        "nobody_asks arithmetic 1": "unreached",
        "nobody_asks constant 1": "unreached",
    }
    killed = results["lapse_sample.noun:is_full return 1"]
    assert killed.by == "tests/test_noun.py::test_full"
    left = {p.name for p in (project / "work").iterdir() if p.name.startswith(("t0", "by-"))}
    assert left == set(), "temporary files of forks"


def test_the_report_counts_accepted_ones_as_survivors(project: Path, tmp_path: Path) -> None:
    module = project / "src/lapse_sample/noun.py"
    mutants = job.mutants_of(project / "src", [module])
    results = {m.key: job.Result(m.key, "killed") for m in mutants[1:]}
    results[mutants[0].key] = job.Result(mutants[0].key, "survived")
    found = report.Report("x", mutants, results)
    assert found.share_killed == pytest.approx(13 / 14)
    accepted = {mutants[0].key: "a border that no user can see"}
    assert report.findings([found], accepted) == ["x: 92.9% killed, 95% wanted"]
    assert "(accepted)" in found.text(accepted)
    list_path = tmp_path / "accepted.toml"
    list_path.write_text(
        '["lapse_sample.noun"]\n"<module> constant 1" = "a border"\n"is_full return 1" = "why"\n'
        '"is_full compare 1" = " "\n'
    )
    assert report.findings([found], report.accepted(list_path))[1:] == [
        "accepted, but killed: lapse_sample.noun:is_full return 1",
        "accepted, but killed: lapse_sample.noun:is_full compare 1",
        "accepted without a reason: lapse_sample.noun:is_full compare 1",
    ]
    record = tmp_path / "mutants.json"
    report.record(record, [found], accepted, seed=3)
    report.record(record, [dataclasses.replace(found, name="y")], {}, seed=4)
    assert set(json.loads(record.read_text())["scopes"]) == {"x", "y"}


def test_mutants_end_with_the_driver(tmp_path: Path) -> None:
    """It may be ended by a time limit of its own."""
    code = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tools.mutants import forks
        print(forks.in_fork(Path.cwd(), lambda: time.sleep(300)), flush=True)
        while not list(Path.cwd().glob("t*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    stat = Path("/proc", done.stdout.strip(), "stat")
    until = time.monotonic() + 20
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.01)


def test_slow_things_do_not_include_what_is_mutated() -> None:
    code = "from tools.mutants import fresh; import sys; fresh.import_slow_things(); "
    code += "print([n for n in sys.modules if n.startswith('lapse')])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
