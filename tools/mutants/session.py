"""A pytest run that tests mutants: the plugin with which `tools.mutants` starts pytest.

The process imports the tests, loads the kernels and runs no test itself. Each of these is a fork:

1. all tests, traced: which of them pass in a fork, run which lines of the modules in question, and
   take how long of the processor;
2. each mutant: its function is planted, then the tests that run its line go, those that mirror the
   module first and the quickest of them, until one fails.

What a module does while it is imported cannot be planted. For such a mutant, pytest is started in a
fork of `tools.mutants` itself (`fresh`), which imports the changed module; then this plugin only
runs the tests.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hypothesis
import pytest

from tools.mutants import forks, job, plant

OPTIONS = (
    *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-o", "addopts=--import-mode=importlib"),  # the others are the terminal's
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of plugins this file imports
)


class Session:
    """The plugin.

    Args:
        folder: where the job is and its results go.
        fresh: this process has its mutant already; None if it is to fork one for each.
    """

    def __init__(self, settings: job.Settings, fresh: job.Covered | None = None) -> None:
        self._settings = settings
        self._folder = Path(settings.folder)
        self._fresh = fresh
        self._known: plant.Functions = {}
        self.code = forks.KILLED  # where not even the tests can be imported

    def pytest_configure(self) -> None:
        """After tests/conftest.py has chosen its own: quick to fail, nothing kept between runs."""
        quick = hypothesis.settings(
            hypothesis.settings.get_profile("lapse"),
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
            max_examples=self._settings.examples,
        )
        hypothesis.settings.register_profile("mutants", quick)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests."""
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        if self._fresh is not None:
            items = {i.nodeid: i for i in session.items}
            wanted = [items[t] for t in self._settings.tests if t in items]
            self.code = run_until_failure(wanted, self._fresh, self._folder)
            return True
        _warm_up()
        self._known = plant.functions_of(frozenset(self._settings.paths))
        gc.collect()
        gc.freeze()  # or each fork's first collection writes to all memory
        covered = self._measure(session, job.covered_from(self._folder / "covered.json"))
        self._try_mutants(session, covered)
        return True

    def _measure(self, session: pytest.Session, known: job.Covered) -> job.Covered:
        """What the tests run that are not known yet; those that are gone are forgotten."""
        new = [i for i in session.items if i.nodeid not in known.tests]
        if new:
            answer = self._folder / "traced.json"
            paths = frozenset(self._settings.paths)
            pid = forks.in_fork(self._folder, lambda: _trace_all(new, paths, answer))
            os.waitpid(pid, 0)
            forks.end(self._folder, pid)
            lines, seconds = json.loads(answer.read_text())
            known = known.with_tests([i.nodeid for i in new], lines, seconds)
        known = known.of({i.nodeid for i in session.items})
        job.write(self._folder / "covered.json", known.as_value())
        return known

    def _try_mutants(self, session: pytest.Session, covered: job.Covered) -> None:
        items = {item.nodeid: item for item in session.items}
        settings = self._settings
        results = self._folder / "results.jsonl"
        with forks.Forks(self._folder, results, settings.at_a_time) as going:
            for mutant in settings.mutants:
                if mutant.outermost is None:
                    continue
                tests = job.choose(mutant, covered, settings.budget_seconds)
                if not tests:
                    going.note(job.Result(mutant.key, "unreached"))
                    continue
                chosen = [items[t] for t in tests]
                going.start(
                    mutant,
                    len(tests),
                    partial(self._try, mutant, chosen, covered),
                )

    def _try(self, mutant: job.Mutant, items: Sequence[pytest.Item], covered: job.Covered) -> int:
        assert mutant.outermost is not None
        try:
            plant.plant(mutant.tree(), mutant.path, *mutant.outermost, self._known)
        except plant.CannotPlantError:
            return forks.DOES_NOT_FIT
        return run_until_failure(items, covered, self._folder)


def _warm_up() -> None:
    """The kernels that tests of logs and rounds use, loaded once for all forks."""
    from lapse.base.fs import RealFs  # noqa: PLC0415
    from lapse.broker.warm_up import warm_up as warm_up_broker  # noqa: PLC0415
    from lapse.lifecycle.warm_up import warm_up as warm_up_rounds  # noqa: PLC0415

    warm_up_broker()
    warm_up_rounds(RealFs())


def run_until_failure(items: Sequence[pytest.Item], covered: job.Covered, folder: Path) -> int:
    """Run tests, each within a time limit, until one fails; the process's exit code."""
    by = folder / f"by-{os.getpid()}"
    remaining = iter(items)

    def begin() -> None:
        item = next(remaining)
        by.write_text(item.nodeid)
        forks.limit_test(covered.seconds[item.nodeid])

    return forks.SURVIVED if all(ok for _, ok in _run(items, begin)) else forks.KILLED


# --- without a mutant ----------------------------------------------------------------------------


def _trace_all(items: Sequence[pytest.Item], paths: frozenset[str], answer: Path) -> int:
    lines: dict[str, dict[int, list[int]]] = {p: {} for p in paths}
    seen: set[tuple[str, int]] = set()
    ours: dict[CodeType, bool] = {}

    def on_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return on_line

    def on_call(frame: FrameType, _event: str, _: object) -> Any:
        code = frame.f_code
        traced = ours.get(code)
        if traced is None:
            traced = ours[code] = code.co_filename in paths
        return on_line if traced else None

    def begin() -> None:
        plant.forget_answers()  # so that each test runs what it needs
        sys.settrace(on_call)

    seconds, started = {}, time.process_time()
    threading.settrace(on_call)
    for number, (item, ok) in enumerate(_run(items, begin)):
        sys.settrace(None)
        for path, line in seen:
            lines[path].setdefault(line, []).append(number)
        seen.clear()
        if ok:
            seconds[item.nodeid] = time.process_time() - started
        started = time.process_time()
    job.write(answer, [lines, seconds])
    return 0


def _run(
    items: Sequence[pytest.Item], begin: Callable[[], object] = lambda: None
) -> Iterator[tuple[pytest.Item, bool]]:
    """Run tests in this order; after each, whether it passed, and was not skipped."""
    if not items:
        return
    worse: list[str] = []

    class Listener:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.outcome != "passed":
                worse.append(report.nodeid)

    config = items[0].config
    base = Path(os.environ["TMPDIR"]) / "tests"
    config._tmp_path_factory._given_basetemp = base  # type: ignore[attr-defined]
    config._tmp_path_factory._basetemp = None  # type: ignore[attr-defined]
    config.pluginmanager.register(Listener())
    for i, item in enumerate(items):
        worse.clear()
        begin()
        following = items[i + 1] if i + 1 < len(items) else None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item, not worse


def main(settings_path: str, seed: str) -> int:
    """A pytest over the tests of these settings, with this plugin."""
    settings = job.settings_from(Path(settings_path))
    session = Session(settings)
    code = pytest.main([*OPTIONS, f"--hypothesis-seed={seed}", *settings.tests], plugins=[session])
    return 0 if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED} else int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
