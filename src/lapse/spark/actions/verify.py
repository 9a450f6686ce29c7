"""`verify` over a session: a task finds the logs, and as many as there are slots check them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.clock import SystemClock
from lapse.base.decoding import from_json
from lapse.cli import verify as command
from lapse.lifecycle.verify.files import find_log
from lapse.spark.actions.commands import answer_of, json_lines, printed
from lapse.spark.actions.task import Command, Ended, answered, parsed, run_command
from lapse.spark.rounds.bins import BIN_COST_BYTES_MIN, BINS_PER_SLOT, even_bins
from lapse.spark.session.jobs import Jobs

_LOG_COST_BYTES = 256 << 10


class Found(msgspec.Struct, frozen=True):
    """The logs to check.

    Attributes:
        sizes: bytes of each on all sides, by its name, in the order of the answer; empty where
            the sides are single logs. now_ms: the clock of the task that found them.
    """

    sizes: dict[str, int]
    now_ms: int


def verify_logs(jobs: Jobs, words: tuple[str, ...]) -> list[dict[str, Any]]:
    """Findings, then logs, as the command prints them. Raises ConfigError, ActionFailed."""
    args = parsed(words)
    found: Found = answer_of(
        jobs.one("finding logs", find_logs, msgspec.json.encode(Command(words))), Found
    )
    times = () if args.now else (f"--now={found.now_ms}",)
    slots = jobs.slots() if len(found.sizes) > 1 else 1
    name, *rest = (word for word in words if not word.startswith("--partition="))
    requests = [
        Command((name, "--json", *times, *rest, *(f"--partition={one}" for one in some)))
        for some in shares(found.sizes, slots)
    ]
    what = f"checking {max(len(found.sizes), 1)} logs"
    answers = jobs.all(what, run_command, [msgspec.json.encode(one) for one in requests])
    return in_order(
        [row for answer in answers for row in json_lines(printed(from_json(answer, Ended)))],
        list(found.sizes),
    )


def shares(sizes: dict[str, int], slots: int) -> list[list[str]]:
    """Which logs each task checks; a task of no names checks all that there is."""
    names = list(sizes)
    costs = [_LOG_COST_BYTES + size for size in sizes.values()]
    n_bins = min(-(-sum(costs) // BIN_COST_BYTES_MIN), slots * BINS_PER_SLOT, len(costs))
    return [[names[n] for n in some] for some in even_bins(costs, max(n_bins, 1))]


def in_order(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """As one command has them: findings, then logs, by the names; a log's own stay as they are."""
    places = {name: n for n, name in enumerate(names)}
    return sorted(rows, key=lambda row: (row["type"] == "log", places.get(row["partition"], 0)))


# --- in a task ------------------------------------------------------------------------------------


@answered
def find_logs(encoded: bytes) -> Found:
    """Which logs are on all sides; what is said of the others goes to stderr."""
    args = parsed(from_json(encoded, Command).words)
    now_ms = SystemClock().now_ms()
    sides: list[Path] = [args.before, *args.after]
    logs, alone = command.logs_of(sides, args.partition)
    for said in command.not_checked(alone):
        sys.stderr.write(f"lapse: {said}\n")
    if [where for _, where in logs] == [sides]:  # single logs have no names to choose by
        return Found({}, now_ms)
    return Found({name: sum(find_log(side).size for side in where) for name, where in logs}, now_ms)
