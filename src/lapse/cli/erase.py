"""`lapse erase`: records of keys are made to go, and it is proven that they have gone.

Writes a tombstone for each key whose newest record is a value, has the topic's rounds come soon,
waits until no file of any replica has a record of the keys, until the tombstones' horizons are past
and they are gone too, and ends with a signed proof. What was written after the order was given
stays. Killed and run again it goes on; docs/erase.md explains.

Exit 0: proven, in time. 1: a record remains, the deadline is missed, or no key of a topic was in
any file. 2: wrong usage. 3: not proven, no broker can be reached, or another process is at this
order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import ConfigError, KafkaError
from lapse.base.fs import RealFs
from lapse.base.ids import check_topic_name
from lapse.base.times import after_ms, duration
from lapse.cli import options
from lapse.cli.confirm import add_yes, agreed, listed
from lapse.cli.output import progress_bar
from lapse.cli.prove_erased import (
    EXIT_CODES,
    OPTIONS,
    add_tables,
    audits,
    keys_given,
    paths_given,
    place,
    say_key,
    signing_key,
)
from lapse.cli.remote import add_remote, connection
from lapse.cli.tables import print_table, show_table
from lapse.lifecycle.erase import served, sign
from lapse.lifecycle.erase.drive import Erasure, Look, Places, Target, given, needs_rounds
from lapse.lifecycle.erase.order import (
    FORMAT,
    Order,
    counts_from_now,
    load_order,
    locked,
    parse_deadline,
    require_same,
    save_order,
)
from lapse.lifecycle.erase.proof import GONE, totals
from lapse.lifecycle.erase.replicas import why_unusable
from lapse.lifecycle.erase.search import (
    KEY_FORMATS,
    make_search,
    read_keys_by_topic,
)
from lapse.lifecycle.erase.served import Broker, Served
from lapse.lifecycle.erase.warm_up import warm_up

MET, MISSED, OPEN = "met", "missed", "open"
_SALT_BYTES = 16
_REASONS_MAX = 10  # printed here; the report has more
EXAMPLES = """\
examples:
  lapse erase --topic users --keys gone.csv --replica /data/kafka --dry-run
  lapse erase --topic users --keys gone.csv --replica /data/kafka --order case-17 --deadline 30d
  lapse erase --keys all.parquet --replica /mnt/b1/kafka --replica /mnt/b2/kafka --order case-18
      a table with columns topic and key
  lapse erase --topic users --keys gone.csv --replica /data/kafka --order case-17 --wait 600
      the same order again: it goes on, for ten minutes at most
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a topic.

    Attributes:
        records, tombstones: that remain; later: written since the order was given, which may.
        deadline: met, missed, open, or None where there is none.
        reasons: what speaks against a proof; none if it is one.
        proven_ms: since when it is proven, by this run or one before; None: it is not.
        never_seen: how many keys no file had anything of, from the order on.
    """

    topic: str
    verdict: str
    records: int
    tombstones: int
    later: int
    tombstones_written: int
    proof: str
    given_ms: int
    ended_ms: int
    deadline_ms: int | None
    deadline: str | None
    reasons: tuple[str, ...] = ()
    proven_ms: int | None = None
    never_seen: int = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """What a dry run would do to a topic, and by when that has its effect."""

    topic: str
    keys: int
    tombstones: int
    setting: str | None
    values_gone_ms: int
    tombstones_gone_ms: int
    never_seen: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_remote(parser)
    add = parser.add_argument
    add(
        "--topic", metavar="T", help="whose records; without it --keys is a table that names topics"
    )
    add("--topic-column", default="topic", metavar="NAME", help="that column (default: topic)")
    add("--key", action="append", default=[], metavar="K", help="a key; may be repeated")
    add("--keys", type=Path, action="append", default=[], metavar="FILE",
        help="keys, one a line, or a .csv or .parquet file; may be repeated")  # fmt: skip
    add("--key-column", metavar="NAME",
        help="its column (default: 'key', or the only one of a .parquet file)")  # fmt: skip
    add("--key-format", choices=KEY_FORMATS, default="text", help="how keys are written")
    add("--replica", type=place, action="append", default=[], metavar="DIR",
        help="a log directory; all of every broker that has the topic are needed")  # fmt: skip
    add("--spark-local-dir", type=place, action="append", default=[], metavar="DIR",
        help="a folder in which rounds kept files (spark.local.dir); may be repeated")  # fmt: skip
    add_tables(parser)
    add("--order", type=Path, metavar="DIR", help="folder of the order and its proofs; to go on")
    add("--deadline", metavar="TIME", help="by when: a time with a zone, or 30d, 12h, 90m from now")
    add("--wait", type=int, metavar="SECONDS", help="end by then; to go on, run it again")
    add("--leave-tombstones", action="store_true",
        help="end when the values are gone; keys stay in tombstones until their time")  # fmt: skip
    add("--keep-settings", action="store_true",
        help="do not lower max.compaction.lag.ms meanwhile; rounds come when due")  # fmt: skip
    add("--dry-run", action="store_true", help="look, and say what would be done")
    add_yes(parser)
    add("--sign-with", type=Path, metavar="PEM",
        help=f"Ed25519 key (default: made once, ~/.config/lapse/{sign.KEY_FILE})")  # fmt: skip
    add("--engine", choices=("spark", "inline"), default="inline",
        help="who looks files through: this process, or Spark (default: %(default)s)")  # fmt: skip
    options.add_spark(parser)
    add("--json", action="store_true", help="one JSON object a topic")


def run(args: argparse.Namespace) -> int:
    """Do what is to be done, or say it."""
    clock, fs = SystemClock(), RealFs()
    keys, places = _keys(args), _places(args)
    if args.order is None and not args.dry_run:
        raise ConfigError("--order: needed, a folder for the order and its proofs")
    at = connection(args)
    broker = Broker(at.bootstrap, at.login)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_as_by_ctrl_c())
        is_ours = not args.dry_run and args.order.is_dir()
        if is_ours:
            stack.enter_context(locked(fs, args.order))
        before = None if args.order is None else load_order(args.order)
        now_ms = clock.now_ms()
        order = _order(args, before, keys, now_ms)
        _require_usable(places, list(keys))
        answers = {topic: asyncio.run(served.ask(broker, topic)) for topic in keys}
        order = given(order, answers.values(), keys)
        erasure = _erasure(args, stack, broker, order, keys, places, clock)
        for target in erasure.targets:
            erasure.look(target)
            erasure.require_all_replicas(target, answers[target.part.topic].replicas)
        if args.dry_run:
            return _show_intents(
                [_intent(args, erasure, target, answers, now_ms) for target in erasure.targets],
                as_json=args.json,
            )
        if before is None and not agreed(_question(keys), yes=args.yes):
            return 1
        key = signing_key(args)
        if not is_ours:  # what is refused until here leaves no folder behind
            stack.enter_context(locked(fs, args.order))
            if load_order(args.order) is not None:
                raise ConfigError(f"--order {args.order}: another order was given there just now")
        save_order(fs, args.order, erasure.order)
        until_ms = None if args.wait is None else after_ms(now_ms, 1000 * args.wait)
        lags: Mapping[str, Served] = {} if args.keep_settings else answers
        erasure.run(fs, args.order, _say, until_ms=until_ms, lags=lags)
        proofs = erasure.end(fs, args.order, key)
        rows = [
            _row(target, erasure.order, proof)
            for target, proof in zip(erasure.targets, proofs, strict=True)
        ]
    say_key(sign.public_key_of(key), None)
    _show(rows, as_json=args.json)
    return max(map(_exit_code, rows), key=_weight)


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM too lets settings be put back; only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(f"lapse: {line}", file=sys.stderr, flush=True)


# --- the search ----------------------------------------------------------------------------------


def _question(keys: Mapping[str, Sequence[bytes]]) -> str:
    """Keys are data of people, and are not shown."""
    count = sum(map(len, keys.values()))
    return f"erase {count} key{'s'[: count != 1]} of {listed([*keys])} from all replicas for good?"


def _keys(args: argparse.Namespace) -> dict[str, list[bytes]]:
    """Distinct keys by topic."""
    found: dict[str, list[bytes]] = {}
    if args.topic:
        found[args.topic] = keys_given(args)
    elif args.key:
        raise ConfigError("--topic: needed with --key")
    else:
        for path in args.keys:
            by_topic = read_keys_by_topic(path, args.key_format, args.key_column, args.topic_column)
            for topic, keys in by_topic.items():
                found.setdefault(topic, []).extend(keys)
    if not any(found.values()):
        raise ConfigError("nothing to erase: --keys says which keys, or --key")
    for topic, keys in found.items():
        try:
            check_topic_name(topic)
        except KafkaError as e:
            raise ConfigError(f"--topic: {e}") from e
        found[topic] = list(make_search(keys).keys)
    return found


def _places(args: argparse.Namespace) -> Places:
    if not args.replica:
        raise ConfigError("--replica: at least one log directory is needed")
    if args.wait is not None and args.wait < 0:
        raise ConfigError(f"--wait {args.wait}: allowed is a number of seconds from 0 on")
    return Places(tuple(paths_given(args)))


def _require_usable(places: Places, topics: Sequence[str]) -> None:
    """Before anything is done: what is wrong with a name does not go by waiting."""
    for path, sort in places.paths:
        problem = why_unusable(path, sort, topics)
        if problem is not None:
            raise ConfigError(f"{OPTIONS[sort]} {path}: {problem}")


def _order(
    args: argparse.Namespace, before: Order | None, keys: Mapping[str, Sequence[bytes]], now_ms: int
) -> Order:
    """A new one, empty; or raises ConfigError where there is one that this is not."""
    deadline_ms = None if args.deadline is None else parse_deadline(args.deadline, now_ms)
    if before is None:
        return Order(FORMAT, secrets.token_hex(_SALT_BYTES), now_ms, deadline_ms, ())
    require_same(before, keys, args.order)
    if before.deadline_ms is None:
        return replace(before, deadline_ms=deadline_ms)
    if args.deadline is None or counts_from_now(args.deadline):
        return before
    if deadline_ms != before.deadline_ms:
        raise ConfigError(f"--deadline {args.deadline}: {args.order} has another one")
    return before


def _erasure(
    args: argparse.Namespace, stack: contextlib.ExitStack, broker: Broker, order: Order,
    keys: Mapping[str, Sequence[bytes]], places: Places, clock: Clock,
) -> Erasure:  # fmt: skip
    warm_up()
    on_progress = stack.enter_context(progress_bar("looking through", clock))
    runs = stack.enter_context(audits(args, clock, on_progress))
    targets = []
    for part in order.topics:
        search = make_search(keys[part.topic], tombstones_too=not args.leave_tombstones)
        salt = secrets.token_hex(_SALT_BYTES)
        targets.append(Target(part, search.keys, search, salt, runs(search)))
    return Erasure(served.Network(broker), order, targets, places, clock, runs.rest)


# --- dry runs -------------------------------------------------------------------------------------


def _intent(
    args: argparse.Namespace, erasure: Erasure, target: Target, answers: Mapping[str, Served],
    now_ms: int,
) -> Intent:  # fmt: skip
    answer = answers[target.part.topic]
    due = erasure.due(target)
    assert target.last is not None
    forced = None if args.keep_settings else served.lag_wanted(answer)
    waits = needs_rounds(target.last)  # the time of a table's next export is not known
    works = forced is not None and waits
    lag_ms = int(forced.value) if works and forced else answer.ms(served.MAX_LAG)
    retention_ms = answer.ms(served.RETENTION)
    removal_ms = answer.ms(served.REMOVAL_LAG, -1)
    unlink_ms = answer.ms(served.UNLINK_DELAY)
    values_ms = after_ms(now_ms, lag_ms, unlink_ms) if waits else now_ms
    removal_ms = removal_ms if removal_ms >= 0 else retention_ms
    return Intent(
        target.part.topic, len(target.keys), len(due),
        f"{forced.name}={forced.value}" if works and forced else None,
        values_ms, after_ms(values_ms, retention_ms, removal_ms, unlink_ms),
        len(target.part.never_seen),
    )  # fmt: skip


def _show_intents(intents: Sequence[Intent], *, as_json: bool) -> int:
    if as_json:
        show_table(intents, {}, as_json=True)
        return 0
    now_ms = SystemClock().now_ms()
    header = ("topic", "keys", "in no file", "tombstones to write", "meanwhile",
              "values gone in about", "tombstones in about")  # fmt: skip
    lines = [
        (
            one.topic, str(one.keys), str(one.never_seen), str(one.tombstones), one.setting or "-",
            _in(one.values_gone_ms - now_ms), _in(one.tombstones_gone_ms - now_ms),
        )
        for one in intents
    ]  # fmt: skip
    print_table([header, *lines])
    return 0


def _in(ms: int) -> str:
    return duration(ms) if ms > 0 else "-"


# --- the end --------------------------------------------------------------------------------------


def _last(target: Target) -> Look:
    assert target.last is not None
    return target.last


def _row(target: Target, order: Order, proof: Path) -> Row:
    look = _last(target)
    proven_ms = None
    if look.verdict.state in GONE:
        proven_ms = target.part.since_ms(tombstones_too=look.spec.tombstones_too)
    return Row(
        target.part.topic, look.verdict.state, look.left.values, look.left.tombstones,
        sum(count.beyond for count in totals(look.replicas).values()),
        len(target.written), str(proof), order.given_ms, look.ended_ms, order.deadline_ms,
        _deadline(proven_ms, look.ended_ms, order.deadline_ms), look.verdict.reasons, proven_ms,
        len(look.verdict.never_seen),
    )  # fmt: skip


def _deadline(proven_ms: int | None, ended_ms: int, deadline_ms: int | None) -> str | None:
    """By the first proof: who runs a proven order again has not missed it."""
    if deadline_ms is None:
        return None
    if (ended_ms if proven_ms is None else proven_ms) > deadline_ms:
        return MISSED
    return OPEN if proven_ms is None else MET


def _exit_code(row: Row) -> int:
    return 1 if row.deadline == MISSED else EXIT_CODES[row.verdict]


def _weight(code: int) -> int:
    """What remains is worse than what is not known."""
    return {0: 0, 3: 1, 1: 2}[code]


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        show_table(rows, {}, as_json=True)
        return
    for row in rows:
        print(f"{row.topic}: {row.verdict}, {row.proof}")
        if row.never_seen:
            print(f"  of {row.never_seen} keys nothing was ever seen, from the order on: mistyped?")
        if row.verdict not in GONE:
            print(f"  {row.records} records and {row.tombstones} tombstones remain")
            for reason in row.reasons[:_REASONS_MAX]:
                print(f"  {reason}")
        if row.later:
            print(f"  {row.later} records were written since the order was given, and stay")
        if row.deadline_ms is not None:
            at_ms = row.ended_ms if row.proven_ms is None else row.proven_ms
            left = duration(abs(row.deadline_ms - at_ms))
            how = {MET: f"met, {left} before", MISSED: f"missed by {left}", OPEN: f"in {left}"}
            print(f"  the deadline is {how[row.deadline or OPEN]}")
