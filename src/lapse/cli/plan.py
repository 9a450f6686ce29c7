"""`lapse plan LOGDIR`: what would be cleaned and why, or what holds each log back.

Only looks: writes, locks and rebuilds nothing, and works beside a running Kafka. Exit 1 if a
compacted log cannot be judged or cleaned.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lapse.base.clock import SystemClock
from lapse.base.config import TopicConfig
from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.cli import options
from lapse.cli.output import show_table
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.select import Blocked, LogInfo, decide
from lapse.lifecycle.round.commit import waiting_stamps
from lapse.log.reader import DirectoryView
from lapse.metadata.policies import UNKNOWN, Policies


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "plan",
        help="what would be cleaned and why; only looks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  lapse plan /var/lib/kafka/data -c min.cleanable.dirty.ratio=0.3",
    )
    options.add_partitions(parser)
    options.add_settings(parser)
    parser.add_argument("--now", type=int, metavar="MS", help="judge as of this moment")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class PlanLine:
    """What `plan` says of one log."""

    partition: str
    policy: str
    dirty_ratio: float | None
    first_dirty: int | None
    first_uncleanable: int | None
    dirty_bytes: int | None
    total_bytes: int | None
    due: tuple[str, ...]
    explanation: str
    until: str | None
    finding: bool


def run(args: argparse.Namespace) -> int:
    """Print a line for each log."""
    policies = options.policies(args)
    now_ms = SystemClock().now_ms() if args.now is None else args.now
    view = DirectoryView(args.logdir)
    lines = list(plan_lines(view, options.chosen_partitions(args), policies, now_ms))
    columns = {
        "partition": lambda line: line.partition,
        "policy": lambda line: line.policy,
        "dirty ratio": lambda line: "-" if line.dirty_ratio is None else f"{line.dirty_ratio:.2f}",
        "what holds it": lambda line: (
            line.explanation + (f" until {line.until}" if line.until else "")
        ),
    }
    show_table(lines, columns, as_json=args.json)
    return 1 if any(line.finding for line in lines) else 0


def plan_lines(
    view: DirectoryView, partitions: list[TopicPartition], policies: Policies, now_ms: int
) -> Iterator[PlanLine]:
    """One line a log; a log that cannot be read is a line too."""
    for partition in partitions:
        config = policies.config_of(partition)
        if config is None:
            yield _without_facts(partition, "unknown", UNKNOWN)
            continue
        try:
            yield _line(view, partition, config, now_ms)
        except LapseError as e:
            yield _without_facts(partition, policy_text(config), str(e))


def _line(
    view: DirectoryView, partition: TopicPartition, config: TopicConfig, now_ms: int
) -> PlanLine:
    info = LogInfo(
        view.facts(partition), config, waiting_stamps(view.path / str(partition), now_ms)
    )
    decision = decide(info, now_ms)
    why = explain(decision)
    bounds = decision.bounds
    return PlanLine(
        partition=str(partition),
        policy=policy_text(config),
        dirty_ratio=round(bounds.ratio, 4) if config.compacts else None,
        first_dirty=bounds.dirty,
        first_uncleanable=bounds.upper,
        dirty_bytes=bounds.dirty_bytes,
        total_bytes=sum(s.size for s in info.facts.segments),
        due=tuple(due.value for due in decision.due),
        explanation=why.text,
        until=None if why.until_ms is None else time_text(why.until_ms),
        finding=decision.blocked is Blocked.UNHANDLED,
    )


def _without_facts(partition: TopicPartition, policy: str, why: str) -> PlanLine:
    return PlanLine(str(partition), policy, None, None, None, None, None, (), why, None, True)


def policy_text(config: TopicConfig) -> str:
    """`compact,delete`, as Kafka writes it."""
    return ",".join(sorted(config.cleanup_policy)) or "(keep all)"


def time_text(ms: int) -> str:
    """A moment for people, UTC; far ahead of any calendar it stays a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
