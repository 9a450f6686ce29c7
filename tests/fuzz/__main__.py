"""`make fuzz`: mutated input of every kind, from a seed that is printed."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.fuzz.runner import ROOT, Wanted, run
from tests.fuzz.worker import TARGETS
from tests.oracle.oracle import unpack

CASES = 10_000
GOLDENS = ROOT / "tests" / "golden" / "real-kafka-4.3.1.tar.xz"
SAVED = ROOT / "build" / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="over all (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--only", default="", choices=["", *(t.name for t in TARGETS)])
    parser.add_argument("--case", type=int, help="only this case of the target")
    options = parser.parse_args()
    if options.case is not None and not options.only:
        parser.error("--case is of one target: say --only")
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        unpack(GOLDENS, Path(folder))
        wanted = Wanted(seed, options.cases, Path(folder), SAVED, options.only, options.case)
        outcome = run(wanted)
    print(outcome.table())  # noqa: T201
    for failure in outcome.failures:
        print(f"\n{failure}")  # noqa: T201
    print(f"{len(outcome.failures)} failures")  # noqa: T201
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
