"""`lapse rounds show|pause|resume|cancel|clean`: what the lifecycle service does, and to steer it.

LOGDIR is the first data directory of the broker. The service is reached by files there, so a user
who may write to the directory may pause and cancel, and a pause holds for the service that runs and
for those to come. Only rounds wait: rolls and retention go on. With --bootstrap-server all brokers
of a cluster are asked instead, each for its own service; that takes ALTER of the cluster, and
DESCRIBE to show. Who does not answer goes on as before, and is named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import msgspec

from lapse.base.clock import Clock, SystemClock, time_text
from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import RealFs
from lapse.base.sizes import size_text
from lapse.base.times import after_ms
from lapse.base.typed import duration_ms
from lapse.cli import options
from lapse.cli.asked import ask_brokers, require_address
from lapse.cli.tables import show_table
from lapse.lifecycle.round.progress import LogProgress
from lapse.lifecycle.status import pauses, wishes
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause_text
from lapse.lifecycle.status.reports import ServiceProgress, UnderWay
from lapse.lifecycle.status.snapshot import Status, read_status
from lapse.lifecycle.status.wishes import Wish
from lapse.wire.schema.alter_rounds import CANCEL, CLEAN, PAUSE, RESUME, AlterRoundsRequest
from lapse.wire.schema.describe_outlook import ROUNDS, DescribeOutlookRequest

EXAMPLES = """\
examples:
  lapse rounds show DATA --watch                   bytes done and to do, and when it will be done
  lapse rounds show --bootstrap-server broker1:9092    of all brokers of the cluster
  lapse rounds pause DATA --for 2h --reason "disk is being replaced"
  lapse rounds pause DATA --partition orders-0 --now   and cancel the round that it has now
  lapse rounds resume DATA                         everything
  lapse rounds cancel DATA --partition orders-0    only this round: it is due again in minutes
  lapse rounds clean DATA --partition orders-0     soon, whatever its dirty ratio
  lapse rounds pause --bootstrap-server broker1:9092 --for 2h    on all brokers

exit codes: 0 done, 1 there was nothing to cancel or resume, or a broker did not answer, 2 usage,
3 no such directory
"""
_WATCH_SECONDS = 1.0
_LISTED_MAX = 20

Say = Callable[[argparse.Namespace, Clock], int]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (say, text) in _VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument(
            "logdir", type=Path, metavar="LOGDIR", nargs="?", help="the first data directory"
        )
        verb.add_argument(
            "--bootstrap-server", metavar="HOST:PORT,…",
            help="without LOGDIR: ask all brokers of the cluster",
        )  # fmt: skip
        verb.add_argument(
            "--command-config", type=Path, metavar="FILE", help="a client's properties for that"
        )
        if name == "show":
            verb.add_argument("--json", action="store_true", help="one object, or one a second")
            verb.add_argument("--watch", action="store_true", help="until interrupted")
        else:
            every = "" if name == "clean" else " (default: all)"
            verb.add_argument(
                "--partition", action="append", default=[], metavar="TOPIC-N",
                help=f"only this log; may be repeated{every}", required=name == "clean",
            )  # fmt: skip
        if name == "pause":
            verb.add_argument("--for", dest="duration", metavar="TIME", help="such as 90s, 2h, 1d")
            verb.add_argument("--reason", default="", help="shown beside the pause")
            verb.add_argument("--now", action="store_true", help="cancel what is under way too")
        verb.set_defaults(say=say)


def run(args: argparse.Namespace) -> int:
    """Carry out one verb on the service of that directory."""
    if args.logdir is None:
        require_address(args, "LOGDIR")
    elif getattr(args, "bootstrap_server", None) is not None:
        raise ConfigError("LOGDIR or --bootstrap-server: allowed is one of them")
    elif not args.logdir.is_dir():
        raise StorageError(f"{args.logdir}: no such directory")
    for name in getattr(args, "partition", ()):
        options.partition(name)
    say: Say = args.say
    return say(args, SystemClock())


def _show(args: argparse.Namespace, clock: Clock) -> int:
    missing = False
    for said in _looks(args, clock):
        for broker, status in said:
            missing |= isinstance(status, str)
            _print(broker, status, as_json=args.json)
        sys.stdout.flush()
    return 1 if missing else 0


def _print(broker: int | None, status: Status | str, *, as_json: bool) -> None:
    """What one directory, or one broker, says; a text says why it says nothing."""
    if as_json:
        said = {"error": status} if isinstance(status, str) else msgspec.to_builtins(status)
        of = {} if broker is None else {"broker": broker}
        sys.stdout.write(msgspec.json.encode({**of, **said}).decode() + "\n")
        return
    if broker is not None:
        sys.stdout.write(f"broker {broker}:\n")
    lines = [status] if isinstance(status, str) else _lines(status)
    sys.stdout.write("\n".join(lines) + "\n")
    if not isinstance(status, str) and status.service is not None and status.service.rounds:
        show_table(status.service.rounds[:_LISTED_MAX], _COLUMNS, as_json=False)


def _looks(
    args: argparse.Namespace, clock: Clock
) -> Iterator[list[tuple[int | None, Status | str]]]:
    yield _look(args, clock)
    while args.watch:
        clock.sleep(_WATCH_SECONDS)
        if not args.json and sys.stdout.isatty():
            sys.stdout.write("\x1b[2J\x1b[H")
        yield _look(args, clock)


def _look(args: argparse.Namespace, clock: Clock) -> list[tuple[int | None, Status | str]]:
    """What a directory says, or each broker."""
    if args.logdir is not None:
        return [(None, read_status(args.logdir, clock.now_ms()))]
    said = ask_brokers(args, DescribeOutlookRequest(what=ROUNDS))
    found: list[tuple[int, Status | str]] = list(said.silent.items())
    for broker, lines in said.lines.items():
        found.append((broker, from_json(lines[0], Status)))
    return sorted(found, key=itemgetter(0))


def _lines(status: Status) -> Iterator[str]:
    service = status.service
    if service is None:
        yield "no lifecycle service has run here: `lapse up`, or `lapse lifecycle CONFIG`"
    elif not status.running:
        since = time_text(service.updated_ms)
        yield f"rounds are not running: {service.state}, silent since {since}"
    else:
        yield f"{service.state}: {service.detail}" if service.detail else service.state
        yield from _far(service)
    queue = status.queue
    if status.running and queue.logs:
        yield f"{queue.running} logs have a round, {len(queue.logs) - queue.running} wait for one"
    for held in queue.held[:_LISTED_MAX]:
        yield f"{held.log} is left alone until {time_text(held.until_ms)}: {held.reason}"
    yield from map(_paused, status.pauses)


def _paused(pause: Pause) -> str:
    return f"{_what(pause)}: {pause_text(pause)}"


def _what(pause: Pause) -> str:
    return "all logs" if pause.log == EVERY_LOG else pause.log


def _far(service: ServiceProgress) -> Iterator[str]:
    if service.bytes_total:
        done, total = service.bytes_done, service.bytes_total
        text = f"{size_text(done)} of {size_text(total)}, {100 * done // total} %"
        yield text + (f", done about {time_text(service.eta_ms)}" if service.eta_ms else "")


def _percent(line: LogProgress) -> str:
    return f"{100 * line.bytes_done // line.bytes_total} %" if line.bytes_total else "-"


_COLUMNS: dict[str, Callable[[LogProgress], str]] = {
    "log": lambda line: line.log,
    "round": lambda line: line.round_id,
    "done": lambda line: size_text(line.bytes_done),
    "of": lambda line: size_text(line.bytes_total),
    "": _percent,
}


def _pause(args: argparse.Namespace, clock: Clock) -> int:
    for_ms = None
    if args.duration is not None:
        for_ms = duration_ms("--for", args.duration)
    if args.logdir is None:
        return _ask_all(
            args,
            AlterRoundsRequest(
                what=PAUSE, logs=tuple(args.partition) or None, reason=args.reason, now=args.now,
                duration_ms=-1 if for_ms is None else for_ms,
            ),
            lambda line: _paused(from_json(line, Pause)),
        )  # fmt: skip
    now_ms, fs = clock.now_ms(), RealFs()
    until_ms = None if for_ms is None else after_ms(now_ms, for_ms)
    pauses.pause(fs, args.logdir, args.partition, Pause(EVERY_LOG, now_ms, until_ms, args.reason))
    if args.now:
        pauses.call_off(fs, args.logdir, args.partition, now_ms)
    for pause in pauses.read_pauses(args.logdir, now_ms):
        print(_paused(pause))
    return 0


def _resume(args: argparse.Namespace, clock: Clock) -> int:
    if args.logdir is None:
        request = AlterRoundsRequest(what=RESUME, logs=tuple(args.partition) or None)
        return _ask_all(args, request, lambda line: _ended(from_json(line, Pause)))
    ended = pauses.resume(RealFs(), args.logdir, args.partition, clock.now_ms())
    return _tell([_ended(one) for one in ended], _NOTHING_PAUSED)


def _cancel(args: argparse.Namespace, clock: Clock) -> int:
    if args.logdir is None:
        request = AlterRoundsRequest(what=CANCEL, logs=tuple(args.partition) or None)
        return _ask_all(args, request, lambda line: _called_off(from_json(line, UnderWay)))
    called_off = pauses.call_off(RealFs(), args.logdir, args.partition, clock.now_ms())
    return _tell([_called_off(one) for one in called_off], _NOTHING_UNDER_WAY)


def _clean(args: argparse.Namespace, clock: Clock) -> int:
    if args.logdir is None:
        request = AlterRoundsRequest(what=CLEAN, logs=tuple(args.partition))
        return _ask_all(args, request, lambda line: _wished(from_json(line, Wish)))
    now_ms = clock.now_ms()
    present = {str(one) for one in options.partitions_in(args.logdir)}
    for name in args.partition:
        if name not in present:
            raise StorageError(f"{args.logdir}: holds no log {name}")
    made = wishes.wish(RealFs(), args.logdir, args.partition, now_ms)
    if not read_status(args.logdir, now_ms).running:
        print("no lifecycle service runs here now: one that begins within the hour does it",
              file=sys.stderr)  # fmt: skip
    return _tell([_wished(one) for one in made], _NO_SUCH_LOG)


_NO_SUCH_LOG = "no broker has such a log"
_NOTHING_PAUSED, _NOTHING_UNDER_WAY = "nothing of that was paused", "no such round is under way"
_OTHERWISE = {RESUME: _NOTHING_PAUSED, CANCEL: _NOTHING_UNDER_WAY, CLEAN: _NO_SUCH_LOG}


def _ended(pause: Pause) -> str:
    return f"{_what(pause)} {'go' if pause.log == EVERY_LOG else 'goes'} on"


def _wished(one: Wish) -> str:
    return f"{one.log} is cleaned soon, as far as it can be: its active segment waits for its roll"


def _called_off(one: UnderWay) -> str:
    return f"{one.log}: round {one.round_id} is called off"


def _ask_all(
    args: argparse.Namespace, request: AlterRoundsRequest, text: Callable[[str], str]
) -> int:
    """Have all brokers do it; 1 where one did not answer, or nothing came of it on any."""
    said = ask_brokers(args, request)
    lines = [
        f"broker {broker}: {text(line)}"
        for broker, some in sorted(said.lines.items())
        for line in some
    ]
    code = _tell(lines, _OTHERWISE.get(request.what, ""))
    for broker, why in sorted(said.silent.items()):
        print(f"broker {broker} goes on as before: {why}", file=sys.stderr)
    return 1 if said.silent else code


def _tell(lines: Sequence[str], otherwise: str) -> int:
    for line in lines:
        print(line)
    if not lines:
        print(otherwise, file=sys.stderr)
    return 0 if lines else 1


_VERBS: dict[str, tuple[Say, str]] = {
    "show": (_show, "what the service does now, how far it is, and who waits"),
    "pause": (_pause, "begin no rounds, of all logs or of some"),
    "resume": (_resume, "begin them again"),
    "cancel": (_cancel, "call off rounds that are under way"),
    "clean": (_clean, "have logs cleaned soon, whatever their dirty ratio"),
}
