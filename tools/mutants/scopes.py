"""Which modules are tested with mutants, how many of them, and by which tests.

Only tests that run the code in their own process can notice a mutant here, and none that needs a
JVM takes part: what those notice beyond is a margin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.job import Mutant


@dataclass(frozen=True, slots=True)
class Scope:
    """Modules that are judged together.

    Attributes:
        modules: patterns below src/lapse.
        tests: files and folders below tests: what is nearest to them.
        wider: others, for what survives those.
        count: how many mutants are drawn; None for all.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    wider: tuple[str, ...] = ()
    count: int | None = None


SCOPES = {
    "decide": Scope(
        ("lifecycle/decide/*.py",),
        (
            *("unit/lifecycle/decide", "unit/lifecycle/test_clock_guard.py"),
            *("property/test_decide.py", "property/test_retention.py"),
            "property/test_time_settings.py",
        ),
        ("unit/lifecycle", "unit/broker/logs/test_housekeeping.py", "simulation"),
    ),
    "commit": Scope(
        ("lifecycle/round/commit*.py", "lifecycle/owner/recovery.py"),
        (
            *("unit/lifecycle/round/test_commit.py", "unit/lifecycle/round/test_commit_told.py"),
            "unit/lifecycle/round/test_commit_manifest.py",
            "unit/lifecycle/round/test_commit_bad.py",
            *(
                "unit/lifecycle/service/test_commits.py",
                "crash/test_commit.py",
                "crash/test_summaries.py",
            ),
        ),
        ("unit/lifecycle", "crash/test_groups.py", "simulation"),
    ),
    "files": Scope(  # what moves, cuts and replaces a log's files
        (
            "log/relocation.py",
            "log/truncater.py",
            "log/replacer.py",
            "log/deleter.py",
            "log/swap.py",
        ),
        (
            *("unit/log/test_relocation.py", "unit/log/test_truncater.py"),
            *("unit/log/test_truncater_order.py", "unit/log/test_deleter.py"),
            *("unit/log/test_swap.py", "unit/log/test_partition_log.py"),
            *("unit/log/test_replacer.py", "unit/log/test_relocation_deleted.py"),
        ),
        (
            *("unit/log", "unit/broker/logs", "crash/test_relocate.py", "crash/test_truncate.py"),
            *("crash/test_swap.py", "crash/test_delete_records.py", "crash/test_commit.py"),
        ),
        count=300,
    ),
    "sample": Scope(
        ("log/**/*.py", "lifecycle/round/**/*.py", "security/**/*.py"),
        ("unit/log", "unit/lifecycle/round", "unit/security"),
        (
            *(
                "unit/lifecycle",
                "unit/broker/request/test_sasl_login.py",
                "unit/broker/net/test_authorization.py",
            ),
            *("property/test_log.py", "property/test_rewrite.py", "property/test_transactions.py"),
            *("property/test_split.py", "property/test_runs.py", "property/test_summaries.py"),
            *("property/test_security.py", "crash/test_log.py", "crash/test_commit.py"),
            *("crash/test_summaries.py", "crash/test_delete_records.py", "crash/test_upgrade.py"),
            *("crash/test_swap.py", "crash/test_groups.py", "unit/cli/test_repair.py"),
        ),
        count=500,
    ),
}


def modules(source: Path, scope: Scope) -> list[Path]:
    """The files of a scope, below `source` (the folder that holds the package)."""
    found = {p for pattern in scope.modules for p in (source / "lapse").glob(pattern)}
    return sorted(p for p in found if p.name != "__init__.py")


def tests(root: Path, names: Iterable[str]) -> list[str]:
    """As pytest takes them; what is not there is left out."""
    return [f"tests/{name}" for name in names if (root / "tests" / name).exists()]


def drawn(mutants: Iterable[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """So many of them, by lot; a run that is broken off has tried a fair part of them.

    Which ones changes little when the code changes a little: each has its lot by its own name.
    """
    known = list(mutants)
    if count is None:
        return known
    return sorted(known, key=lambda m: hashlib.sha256(f"{seed}:{m.key}".encode()).digest())[:count]
