"""`lapse explain LOGDIR or TOPIC`: what holds each log back, and when that ends.

Per log: the rule that binds now, in words and as one word for scripts, with the moment at which it
ends by itself; what Lapse promises of the topic's records, as formulas; unreadable data and the
next try; timestamps from the future; how many logs have their round first. With --offset, the fate
of one record: when it was removed and by which rule (from the ledger), or where it is and why it
stays.

Read-only: writes, locks and rebuilds nothing, and works beside a running Kafka. An argument that is
no directory is a topic, searched for in the directories of --data, or asked of all brokers of a
cluster with --bootstrap-server alone; each says it of its own logs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lapse.base.clock import Clock, SystemClock, time_text
from lapse.base.config import broker_config
from lapse.base.errors import (
    ConfigError,
    LapseError,
    StorageError,
    os_error,
)
from lapse.base.ids import TopicPartition
from lapse.base.times import duration
from lapse.cli import options
from lapse.cli.asked import SILENT, ask_brokers, refuse_beside, require_address
from lapse.cli.plan import METADATA, REMEMBERED
from lapse.cli.quantities import whole_number
from lapse.cli.served_policies import policies_in
from lapse.lifecycle.decide.clock import clock_text
from lapse.lifecycle.outlook.explain import (
    HEALTH,
    SERVICE,
    Explained,
    Surroundings,
    unreadable_log,
)
from lapse.lifecycle.outlook.plan import policy_text
from lapse.lifecycle.owner.unix_socket import ask_conditions
from lapse.lifecycle.record_history import RecordHistory
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.status.conditions import LATE_WORDS, Condition, Seen, pipeline_conditions
from lapse.log.missing import Remembered
from lapse.log.reader import DirectoryView
from lapse.metadata.policies import UNKNOWN, Policies
from lapse.wire.schema.describe_outlook import EXPLAIN, DescribeOutlookRequest

EXAMPLES = """\
examples:
  lapse explain /var/lib/kafka/data --partition orders-0
  lapse explain orders --data DATA --json
  lapse explain DATA --partition orders-0 --offset 4711
  lapse explain orders --bootstrap-server broker1:9092     on all brokers of the cluster
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("target", metavar="LOGDIR|TOPIC", nargs="?",
        help="a data directory, or a topic's name")  # fmt: skip
    add("--data", type=Path, action="append", default=[], metavar="DIR",
        help="a data directory to search for TOPIC; may be repeated")  # fmt: skip
    add("--partition", action="append", default=[], metavar="TOPIC-N",
        help="only this log; may be repeated")  # fmt: skip
    add("--offset", type=whole_number(), metavar="N",
        help="the fate of one record of the one --partition")  # fmt: skip
    options.add_settings(parser)
    options.add_broker(parser)
    add("--now", type=whole_number(), metavar="MS", help="judge as of this moment")
    add("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Print the explanations; exit 1 where something cannot be judged."""
    if args.offset is not None and len(args.partition) != 1:
        raise ConfigError("--offset: allowed with exactly one --partition")
    if args.target is None or (args.bootstrap_server and not (args.data or _names_dir(args))):
        return _show(_said_by_brokers(args), args)
    clock = SystemClock()
    lines = []
    for remembered, partitions in _places(args):
        if isinstance(partitions, StorageError):
            lines.append(unreadable_log(str(remembered.log_dir), "-", partitions))
            continue
        place = _Place.of(args, remembered, clock)
        lines += place.troubles()
        explained = [place.line(partition, args.offset) for partition in partitions]
        lines += [*place.health(explained), *explained]
    return _show(lines, args)


def _show(lines: Sequence[Explained], args: argparse.Namespace) -> int:
    show = _as_json if args.json else _as_text
    sys.stdout.write("".join(show(line) for line in lines))
    return 1 if any(line.finding for line in lines) else 0


def _is_log(line: Explained) -> bool:
    return TopicPartition.parse(line.partition) is not None


def _names_dir(args: argparse.Namespace) -> bool:
    return _is_dir(Path(args.target))


def _said_by_brokers(args: argparse.Namespace) -> list[Explained]:
    """Of all logs of a cluster, or of one topic's."""
    require_address(args, "LOGDIR, TOPIC")
    refuse_beside({"-c": args.settings, "--now": args.now, "--data": args.data})
    request = DescribeOutlookRequest(
        what=EXPLAIN,
        topic=args.target,
        logs=tuple(str(options.partition(name)) for name in args.partition) or None,
        offset=-1 if args.offset is None else args.offset,
    )
    said = ask_brokers(args, request)
    lines = said.of(Explained)
    if args.target is not None and not said.silent and not any(map(_is_log, lines)):
        raise StorageError(f"no broker has such a log of topic {args.target}")
    silent = [
        replace(unreadable_log(SILENT, "-", LapseError(why)), broker=broker)
        for broker, why in said.silent.items()
    ]
    return sorted([*lines, *silent], key=lambda line: (line.partition, line.broker or 0))


def _places(
    args: argparse.Namespace,
) -> Iterator[tuple[Remembered, list[TopicPartition] | StorageError]]:
    """The chosen logs of each data directory; or why a directory cannot be read.

    Raises StorageError where a directory or log does not exist, and ConfigError.
    """
    args.logdir = Path(args.target)
    if _is_dir(args.logdir):
        remembered = Remembered.of(args.logdir)
        try:
            also = remembered.missing_partitions()
            yield remembered, options.chosen_partitions(args, also)
        except StorageError as e:
            if os_error(e) is None:
                raise
            yield remembered, e
        return
    if not args.data:
        raise ConfigError(f"{args.target} is no directory; for a topic pass --data DIR too")
    found = False
    for logdir in args.data:
        remembered = Remembered.of(logdir)
        try:
            present = {*options.partitions_in(logdir), *remembered.missing_partitions()}
        except StorageError as e:
            if os_error(e) is None:
                raise
            found = True
            yield remembered, e
            continue
        named = set(args.partition)
        chosen = [p for p in sorted(present)
                  if p.topic == args.target and (not named or str(p) in named)]  # fmt: skip
        found = found or bool(chosen)
        if chosen:
            yield remembered, chosen
    if not found:
        where = ", ".join(map(str, args.data))
        raise StorageError(f"{where}: holds no such log of topic {args.target}")


def _is_dir(path: Path) -> bool:
    """Whether a path is a directory; True where it may not be read: reading it gives the reason."""
    try:
        return path.is_dir()
    except OSError:
        return True


@dataclass(frozen=True, slots=True)
class _Place:
    """A data directory, with what is known of its logs."""

    view: DirectoryView
    remembered: Remembered
    policies: Policies
    around: Surroundings

    @staticmethod
    def of(args: argparse.Namespace, remembered: Remembered, clock: Clock) -> _Place:
        logdir = remembered.log_dir
        policies = policies_in(logdir, args)
        broker = broker_config({**policies.defaults, **policies.given_defaults})
        around = Surroundings.of(logdir, broker, clock, args.now)
        return _Place(DirectoryView(logdir), remembered, policies, around)

    def line(self, partition: TopicPartition, offset: int | None) -> Explained:
        name, policy = str(partition), "unknown"
        try:
            self.remembered.require_whole(partition)
            config = self.policies.config_of(partition)
            if config is None:
                return Explained(name, policy, "policy", UNKNOWN, finding=True)
            policy = policy_text(config)
            info = info_of(self.view.facts(partition), config, self.around.now_ms)
            line = self.around.explained(info, offset)
            contradictions = self.policies.contradictions_of(partition)
            return replace(line, text=f"{line.text}; {contradictions}") if contradictions else line
        except (LapseError, OSError) as e:
            return unreadable_log(name, policy, e)

    def troubles(self) -> list[Explained]:
        """Files of the directory itself that cannot be read, a line each."""
        found: dict[str, LapseError | str | None] = {
            METADATA: self.policies.trouble,
            REMEMBERED: self.remembered.trouble,
            SERVICE: self.around.service_trouble,
        }
        return [
            Explained(name, "-", "unreadable", str(why), finding=True)
            for name, why in found.items()
            if why
        ]

    def health(self, explained: Sequence[Explained]) -> list[Explained]:
        """Problems of the broker and the service of the directory, a line each.

        As reported by its broker; where no broker answers, derived from files and `explained`.
        """
        if not self.around.is_judged_now:
            return []
        reported = ask_conditions(self.view.path)
        found = self._by_files(explained) if reported is None else reported
        return [Explained(HEALTH, "-", problem.reason, str(problem)) for problem in found]

    def _by_files(self, lines: Sequence[Explained]) -> Sequence[Condition]:
        """Empty where no Lapse service ever ran: lateness is then not Lapse's."""
        around = self.around
        if around.progress is None:
            return ()
        held = {log.log: (log.count, log.reason) for log in around.queue.held}
        due = sum(line.plan is not None for line in lines)
        late = {(line.partition, k): ms for line in lines for k, ms in line.overdue_ms.items()}
        verdict = around.verdict
        clock = "" if verdict is None or not verdict.held else clock_text(verdict)
        seen = Seen(around.now_ms, True, around.progress, None, due, held, late, clock)
        return pipeline_conditions(seen)


def _as_json(line: Explained) -> str:
    fields = msgspec.to_builtins(line)
    fields["promises"] = [promise._asdict() for promise in line.promises]
    del fields["finding"]
    return msgspec.json.encode(fields).decode() + "\n"


def _as_text(line: Explained) -> str:
    at = "" if line.broker is None else f"  broker {line.broker}"
    rows = [f"{line.partition}  {line.policy}{at}"]
    if line.fate is not None:
        rows += _fate_text(line.fate)
    else:
        rows.append(f"  {line.text}{_until(line.until_ms)} [{line.rule}]")
        late = {kind: ms for kind, ms in line.overdue_ms.items() if ms}
        rows += [f"  late: {LATE_WORDS[kind]} by {duration(ms)}" for kind, ms in late.items()]
        rows += [f"  {text}" for text in _more(line)]
        rows += [f"  promised: {p.name}: {p.formula}" for p in line.promises]
    return "\n".join(rows) + "\n"


def _fate_text(fate: RecordHistory) -> Sequence[str]:
    rows = [f"  offset {fate.offset}: {fate.state}: {fate.text}{_until(fate.until_ms)}"]
    if fate.now_ms is not None and fate.committed_ms is not None:
        clock = f"the round's clock was {time_text(fate.now_ms)}"
        rows.append(f"  {clock}, it was committed {time_text(fate.committed_ms)}")
    if fate.place is not None:
        place = fate.place
        rows.append(f"  segment {place.segment}, batch {place.batch}, byte {place.position}")
    return rows


def _more(line: Explained) -> Iterator[str]:
    if line.bad is not None and line.rule != "bad-range":
        bad = line.bad
        yield (
            f"unreadable: segment {bad.segment_base}, byte {bad.position}, offset "
            f"{bad.first_offset}: {bad.reason}; next try {time_text(bad.next_try_ms)}"
        )
    for future in line.future_timestamps:
        yield f"segment {future.segment} has a timestamp from the future: " + time_text(
            future.timestamp_ms
        )
    if line.plan is not None:
        yield line.plan
    if line.paused is not None and line.rule != "paused":
        yield f"rounds of it are {line.paused}"
    if line.service is not None:
        yield f"lifecycle service {line.service}"


def _until(until_ms: int | None) -> str:
    return "" if until_ms is None else f", until {time_text(until_ms)}"
