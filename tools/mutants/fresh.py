"""Mutants of what a module does while it is imported: a process that imports it changed.

A fork of this process, which has imported what is slow to import and nothing of Lapse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tools.mutants import forks, job, plant
from tools.mutants.session import OPTIONS, Session

IMPORT_SECONDS = 10.0  # what importing the tests may take without a mutant
THEIRS = {"fresh", "unreached"}  # what could not be planted; what no test runs: the import may


def import_slow_things() -> None:
    """What the tests need from elsewhere."""
    import msgspec  # noqa: F401, PLC0415
    import numba.extending  # noqa: F401, PLC0415
    import pyarrow as pa  # noqa: F401, PLC0415


def try_mutants(
    mutants: Sequence[job.Mutant], settings: job.Settings, covered: job.Covered
) -> None:
    """Test each in a fork; results go where those of planted ones go."""
    if not mutants:
        return
    import_slow_things()
    folder = Path(settings.folder)
    with forks.Forks(folder, folder / "results.jsonl", settings.at_a_time) as going:
        for mutant in mutants:
            anywhere = dataclasses.replace(mutant, outermost=None)
            tests = job.choose(anywhere, covered, settings.budget_seconds)
            if not tests:
                going.note(job.Result(mutant.key, "unreached"))
                continue
            own = dataclasses.replace(settings, tests=tests, mutants=())
            going.start(mutant, len(tests), partial(_try, mutant, own, covered))


def _try(mutant: job.Mutant, settings: job.Settings, covered: job.Covered) -> int:
    forks.limit_test(IMPORT_SECONDS)  # until the first test has a limit of its own
    plant.import_changed(mutant.path, mutant.tree())
    session = Session(settings, covered)
    pytest.main([*OPTIONS, *settings.tests], plugins=[session])
    return session.code
