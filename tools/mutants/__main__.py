"""One small change of the code at a time, and whether a test notices: `make mutants`.

For each scope of `scopes` pytest is started once (`session`), which forks a process a mutant. What
survives its quickest tests is tried again with ten times as many. Ends with 1 if fewer than
95 of a hundred mutants were killed, or if the list of accepted ones is not right.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.mutants import fresh, job, report, scopes

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
SEED = 20130101
BUDGET_SECONDS = 8.0
SECOND_TRY = 10  # times that
MEMORY = Path("/dev/shm")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    accepted = report.accepted(ROOT / "tests" / "mutants-accepted.toml")
    reports = {}
    for name in options.only or scopes.SCOPES:
        mutants = chosen(name, options)
        print(f"=== {name}: {len(mutants)} mutants", flush=True)
        with working_folder(options.folder, name) as folder:
            if not options.read:
                run(name, mutants, options, folder)
            results = job.read_results(folder / "results.jsonl")
        reports[name] = report.Report(name, mutants, results)
        print(reports[name].text(accepted), flush=True)
    if options.record:
        report.record(options.record, list(reports.values()), accepted, options.seed)
    findings = [] if options.key else report.findings(list(reports.values()), accepted)
    print(*findings, sep="\n")
    return 1 if findings else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(scopes.SCOPES), metavar="SCOPE")
    parser.add_argument("--key", action="append", help="mutants whose key begins so; all of these")
    parser.add_argument("--seed", type=int, default=SEED, help="which ones are drawn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--examples", type=int, default=25, help="of a Hypothesis test")
    parser.add_argument("--record", type=Path, help="write the results here")
    parser.add_argument("--read", action="store_true", help="try none; tell what --folder has")
    parser.add_argument("--once", action="store_true", help="no second try with more tests")
    parser.add_argument(
        "--folder", type=Path, help="work here; what was killed before is not tried again"
    )
    return parser.parse_args(arguments)


@contextlib.contextmanager
def working_folder(kept: Path | None, name: str) -> Iterator[Path]:
    """Where a scope's run writes: below `kept`, one for each state of the sources, or for now."""
    if kept:
        sources = b"".join(p.read_bytes() for p in scopes.modules(SOURCE, scopes.SCOPES[name]))
        folder = kept.resolve() / f"{name}-{hashlib.sha256(sources).hexdigest()[:8]}"
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mut", dir=memory) as path:
        yield Path(path)


def chosen(name: str, options: argparse.Namespace) -> list[job.Mutant]:
    """The mutants of a scope: drawn, or those asked for."""
    scope = scopes.SCOPES[name]
    mutants = job.mutants_of(SOURCE, scopes.modules(SOURCE, scope))
    if options.key:
        return [m for m in mutants if m.key.startswith(tuple(options.key))]
    return scopes.drawn(mutants, scope.count, options.seed)


def run(
    name: str, mutants: Sequence[job.Mutant], options: argparse.Namespace, folder: Path
) -> None:
    """Try all; those that survive, once more with more tests. Results go to the folder."""
    scope = scopes.SCOPES[name]
    paths = [str(p) for p in scopes.modules(SOURCE, scope)]
    settings = job.Settings(
        str(folder),
        tests=scopes.tests(ROOT, scope.tests),
        paths=paths,
        mutants=mutants,
        budget_seconds=options.budget,
        at_a_time=options.jobs,
        examples=options.examples,
    )
    if not mutants:
        return
    done = job.read_results(folder / "results.jsonl")
    open_ones = [m for m in mutants if m.key not in done or done[m.key].outcome not in job.KILLED]
    run_pytest(dataclasses.replace(settings, mutants=open_ones), folder, options.seed)
    by_key = job.read_results(folder / "results.jsonl")
    unplanted = [m for m in mutants if m.key not in by_key or by_key[m.key].outcome in fresh.THEIRS]
    fresh.try_mutants(unplanted, settings, job.covered_from(folder / "covered.json"))
    if not options.once:
        by_key = job.read_results(folder / "results.jsonl")
        alive = [m for m in mutants if m.outermost and by_key[m.key].outcome in job.ALIVE]
        more = dataclasses.replace(
            settings,
            tests=scopes.tests(ROOT, [*scope.tests, *scope.wider]),
            mutants=alive,
            budget_seconds=SECOND_TRY * options.budget,
        )
        run_pytest(more, folder, options.seed)


def run_pytest(settings: job.Settings, folder: Path, seed: int) -> None:
    """One pytest whose forks try the mutants."""
    path = folder / "settings.json"
    job.write(path, dataclasses.asdict(settings))
    environment = {
        **os.environ,
        "LAPSE_TEST_SCALE": os.environ.get("LAPSE_TEST_SCALE") or "0.02",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("LAPSE_TEST_REPORT", None)
    command = [sys.executable, "-m", "tools.mutants.session", str(path), str(seed)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
