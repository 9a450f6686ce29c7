"""`make chaos`: everything is hurt while stock clients write and read; prints seed and story."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import story as stories
from tests.chaos.plants import PLANTS
from tests.chaos.run import Wanted, drawn, run

ROOT = Path(__file__).resolve().parents[2]
SAVED = ROOT / "build" / "chaos"
MINUTES = 2.0
MINUTES_MAX = 180.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        epilog="example: make chaos SEED=7 MINUTES=10",
    )
    add = parser.add_argument
    add("--seed", type=int, help="default: a new one")
    add("--minutes", type=float, default=MINUTES, help="of faults (default: %(default)g)")
    add("--only", default="", help=f"kinds of fault, by comma, of {', '.join(stories.KINDS)}")
    add("--story", type=Path, help="a story.json of a run before, or one that was made of it")
    add("--engine", default="spark", choices=["spark", "inline"], help="as of lapse up")
    add("--saved", type=Path, default=SAVED, help="where a run with findings is kept")
    add("--plant", choices=list(PLANTS), help="what must be found, to see that it is")
    add("--show", action="store_true", help="print the story and do nothing")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= MINUTES_MAX:
        parser.error(f"--minutes {options.minutes:g}: allowed is up to {MINUTES_MAX:g}")
    only = tuple(filter(None, options.only.split(",")))
    if unknown := [name for name in only if name not in stories.KINDS]:
        parser.error(f"--only {unknown[0]}: known are {', '.join(stories.KINDS)}")
    if options.story is not None:
        story = stories.decode(options.story.read_bytes())
    else:
        seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
        story = drawn(seed, 60 * options.minutes, only)
    tell("\n".join(story.lines()))
    if options.show:
        return 0
    plant = PLANTS.get(options.plant)
    saved = options.saved / str(story.seed)
    outcome = run(Wanted(story, saved, options.engine, plant), tell)
    tell("\n".join(outcome.lines()))
    return 1 if outcome.findings else 0


def tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
