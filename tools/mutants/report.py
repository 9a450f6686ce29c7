"""What came of a run: for people, for the record, and whether it is good enough."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import run_tests
from tools.mutants.job import KILLED, Mutant, Result

KILLED_MIN = 0.95


@dataclass(frozen=True, slots=True)
class Report:
    """One scope's mutants, and what came of each that was tried."""

    name: str
    mutants: Sequence[Mutant]
    results: Mapping[str, Result]

    def survivors(self) -> list[Mutant]:
        return [m for m in self.mutants if self.outcome(m) not in KILLED]

    def outcome(self, mutant: Mutant) -> str:
        result = self.results.get(mutant.key)
        return result.outcome if result else "not tried"

    @property
    def share_killed(self) -> float:
        """Of all, accepted ones included."""
        return 1 - len(self.survivors()) / len(self.mutants) if self.mutants else 1.0

    def text(self, accepted: Mapping[str, str]) -> str:
        lines = [
            f"{m.path.rpartition('/lapse/')[2]}:{m.line}: {self.outcome(m)}: {m.key}"
            f"{'  (accepted)' if m.key in accepted else ''}\n    {m.text}"
            for m in self.survivors()
        ]
        counts = Counter(self.outcome(m) for m in self.mutants)
        told = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common())
        lines.append(f"{self.name}: {told}; {self.share_killed:.1%} of {len(self.mutants)} killed")
        return "\n".join(lines)

    def value(self, accepted: Mapping[str, str]) -> dict[str, Any]:
        return {
            "mutants": len(self.mutants),
            **Counter(self.outcome(m) for m in self.mutants),
            "killed_share": round(self.share_killed, 4),
            "seconds": round(sum(r.seconds for r in self.results.values()), 1),
            "survivors": {m.key: accepted.get(m.key, "") for m in self.survivors()},
        }


def accepted(path: Path) -> dict[str, str]:
    """Key -> the reason why no test can or should notice it; one table a module."""
    tables = tomllib.loads(path.read_text()) if path.exists() else {}
    return {
        f"{module}:{name}": reason for module, by in tables.items() for name, reason in by.items()
    }


def findings(reports: Sequence[Report], accepted: Mapping[str, str]) -> list[str]:
    """What is not good enough about a run of whole scopes."""
    found = [
        f"{report.name}: {report.share_killed:.1%} killed, {KILLED_MIN:.0%} wanted"
        for report in reports
        if report.share_killed < KILLED_MIN
    ]
    tried = {m.key for r in reports for m in r.mutants}
    alive = {m.key for r in reports for m in r.survivors()}
    found += [f"accepted, but killed: {k}" for k in accepted if k in tried and k not in alive]
    found += [f"accepted without a reason: {k}" for k, why in accepted.items() if not why.strip()]
    return found


def record(path: Path, reports: Sequence[Report], accepted: Mapping[str, str], seed: int) -> None:
    """As JSON; scopes that were not run keep what an earlier run wrote."""
    old = json.loads(path.read_text()) if path.exists() else {}
    scopes = old.get("scopes", {})
    for report in reports:
        scopes[report.name] = {
            "commit": run_tests.commit(),
            "seed": seed,
            **report.value(accepted),
        }
    path.write_text(json.dumps({"scopes": scopes}, indent=1) + "\n")
