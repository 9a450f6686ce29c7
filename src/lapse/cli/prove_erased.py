"""`lapse prove-erased`: that no record of a key, or at an offset, is in any file of any replica.

A replica is a log directory. Every file of the topic's partitions in it counts, also those that
are being deleted, swapped or made by a round: batches are read record by record, anything else is
searched for the key's bytes and listed; and every file of tables made by `lapse export`, row by
row. Only looks, and may run beside a live broker. What it
cannot see (free blocks, backups, consumers) every report says; docs/prove-erased.md explains.

Exit 0: proven. 1: a record remains. 2: wrong usage. 3: not proven, since something could not be
looked through, or the bytes of a key are where no record can be read.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lapse.base.bucket import Bucket, is_bucket
from lapse.base.clock import Clock, SystemClock, time_text
from lapse.base.errors import ConfigError, KafkaError, StorageError, unreadable
from lapse.base.fs import RealFs
from lapse.base.ids import check_topic_name
from lapse.base.setting import INT_MAX
from lapse.cli import options
from lapse.cli.output import progress_bar, say_starting
from lapse.cli.quantities import whole_number
from lapse.cli.tables import show_table
from lapse.lifecycle.erase import sign
from lapse.lifecycle.erase.check import Checked, check
from lapse.lifecycle.erase.findings import Count
from lapse.lifecycle.erase.inline import InlineRuns
from lapse.lifecycle.erase.places import is_text
from lapse.lifecycle.erase.proof import (
    CANNOT_SEE,
    FORMAT,
    NEVER_SEEN,
    NOT_PROVEN,
    PROVEN,
    REMAINS,
    Report,
    Verdict,
    cluster_ids_of,
    decode_report,
    doubted,
    encode_report,
    judge,
    looked_through,
    name_of,
    topic_ids_of,
    totals,
)
from lapse.lifecycle.erase.replicas import (
    ReplicaFindings,
    Runs,
    Sort,
    Where,
    look_through_all,
    why_unusable,
)
from lapse.lifecycle.erase.search import (
    KEY_FORMATS,
    Search,
    SearchSpec,
    make_search,
    parse_key,
    read_keys,
    recalled,
    spec_of,
)
from lapse.lifecycle.erase.warm_up import warm_up
from lapse.lifecycle.round.progress import OnProgress, Progress

OPTIONS = {Sort.LOGS: "--replica", Sort.SCRATCH: "--spark-local-dir", Sort.TABLE: "--table"}
EXIT_CODES = {PROVEN: 0, REMAINS: 1, NEVER_SEEN: 1, NOT_PROVEN: 3}
_ROWS_MAX = 50
_SALT_BYTES = 16
EXAMPLES = """\
examples:
  lapse prove-erased --topic users --key u-4711 --replica /data/kafka --report proof.json
  lapse prove-erased --topic users --keys erased.csv --key-column user \\
      --replica /mnt/broker1/kafka --replica /mnt/broker2/kafka --report proof.json
  lapse prove-erased --topic users --key 00000007 --key-format hex --below-offset 5000 --replica D
  lapse prove-erased --topic users --key u-4711 --replica /data/kafka --table /lake/users
  lapse prove-erased --topic clicks --partition 0 --offset 17 --replica D
  lapse prove-erased --check proof.json --key u-4711
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("--topic", metavar="T", help="whose records")
    add("--partition", type=whole_number(0, INT_MAX), metavar="N",
        help="only this partition of it")  # fmt: skip
    add("--replica", type=place, action="append", default=[], metavar="DIR",
        help="a log directory; may be repeated, and should be for every broker's")  # fmt: skip
    add("--spark-local-dir", type=place, action="append", default=[], metavar="DIR",
        help="a folder in which rounds kept files (spark.local.dir); may be repeated")  # fmt: skip
    add_tables(parser)
    add("--key", action="append", default=[], metavar="K", help="a key; may be repeated")
    add("--keys", type=Path, action="append", default=[], metavar="FILE",
        help="keys, one a line, or a .csv or .parquet file")  # fmt: skip
    add("--key-column", metavar="NAME",
        help="its column (default: 'key', or the only one of a .parquet file)")  # fmt: skip
    add("--key-format", choices=KEY_FORMATS, default="text", help="how keys are written")
    add("--offset", type=whole_number(), action="append", default=[], metavar="N",
        help="no record at this offset, whatever its key; needs --partition")  # fmt: skip
    add("--below-offset", type=whole_number(), metavar="N",
        help="records from this offset on may stay")  # fmt: skip
    add("--tombstones-too", action="store_true", help="a tombstone counts as a record that remains")
    add("--report", type=Path, metavar="FILE", help="write the signed report there")
    add("--sign-with", type=Path, metavar="PEM",
        help=f"Ed25519 key (default: made once, ~/.config/lapse/{sign.KEY_FILE})")  # fmt: skip
    add("--check", type=Path, metavar="REPORT",
        help="check a report: its signature, and what is there now (--replica: where)")  # fmt: skip
    add("--public-key", type=Path, action="append", default=[], metavar="PEM",
        help="with --check: whose signature it must be (default: ours); repeatable")  # fmt: skip
    add("--engine", choices=("spark", "inline"), default="inline",
        help="who looks files through: this process, or Spark (default: %(default)s)")  # fmt: skip
    options.add_spark(parser)
    add("--json", action="store_true", help="the signed report itself; with --check, what differs")


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Of who looks for keys in tables as well."""
    parser.add_argument(
        "--table", type=place, action="append", default=[], metavar="DIR",
        help="a table of the topic's records (`lapse export`), also s3://BUCKET/PREFIX; "
        "may be repeated",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Prove, or check a proof."""
    clock = SystemClock()
    return _check(args, clock) if args.check is not None else _prove(args, clock)


# --- proving --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """What to look for and where, since when."""

    places: tuple[Where, ...]
    search: Search
    started_ms: int


def _prove(args: argparse.Namespace, clock: Clock) -> int:
    asked = ask(args, clock)
    warm_up()
    with (
        progress_bar("looking through", clock) as on_progress,
        audits(args, clock, on_progress) as runs,
    ):
        run_units = runs(asked.search)
        replicas = look_through_all(asked.places, run_units, clock)
    return conclude(args, asked, replicas, clock)


def ask(args: argparse.Namespace, clock: Clock) -> Asked:
    """What the options say. Raises ConfigError, StorageError before anything is looked at."""
    if args.public_key:
        raise ConfigError("--public-key: allowed only with --check")
    places = _places(args)
    search = make_search(
        keys_given(args), args.offset, below_offset=args.below_offset,
        tombstones_too=args.tombstones_too,
    )  # fmt: skip
    _check_report_path(args.report)
    _signing_key(args)  # before the work, not after it
    return Asked(tuple(places), search, clock.now_ms())


def conclude(
    args: argparse.Namespace, asked: Asked, replicas: tuple[ReplicaFindings, ...], clock: Clock
) -> int:
    """The report of what was found: written, printed; the exit code."""
    key = _signing_key(args)
    spec = spec_of(asked.search, secrets.token_hex(_SALT_BYTES))
    report = Report(
        FORMAT, version("lapse"), platform.node(), args.topic, args.partition, spec,
        asked.started_ms, clock.now_ms(), replicas, judge(replicas, spec, args.topic),
        cluster_ids=cluster_ids_of(replicas), topic_ids=topic_ids_of(replicas),
        key_id="" if key is None else sign.fingerprint(sign.public_key_of(key)), doubts=(),
    )  # fmt: skip
    if key is not None:
        _hand_out(args, sign.seal(encode_report(report), key))
    if not args.json:
        _show_what(report)
        show_verdict(replicas, spec, report.verdict)
        print("This cannot see:")
        for text in CANNOT_SEE:
            print(f"  - {text}")
    if key is not None:
        say_key(sign.public_key_of(key), args.report)
    return EXIT_CODES[report.verdict.state]


def _signing_key(args: argparse.Namespace) -> Any:
    """None where nothing is to be signed."""
    return signing_key(args) if args.report is not None or args.json else None


@contextmanager
def audits(args: argparse.Namespace, clock: Clock, on_progress: OnProgress) -> Iterator[Runs]:
    """Who looks files through for a search, as `--engine` and `--master` say."""
    if args.engine == "inline":
        yield InlineRuns(clock, on_progress)
        return
    from lapse.spark.rounds.erase import spark_audits  # noqa: PLC0415  (no JVM unless it is wanted)
    from lapse.spark.session.session import SessionOptions  # noqa: PLC0415

    said = options.spark_settings(args.conf)
    wish = SessionOptions(args.master, "lapse erasure", said=said, when_starting=say_starting)
    with spark_audits(wish, clock, on_progress) as runs:
        yield runs


def _check_report_path(path: Path | None) -> None:
    """Before the work, not after it."""
    if path is not None and path.exists():
        raise StorageError(f"{path}: is there already; a report is never written over")
    if path is not None and not path.absolute().parent.is_dir():
        raise StorageError(f"{path}: no such directory")


def _places(args: argparse.Namespace) -> list[Where]:
    if not args.topic:
        raise ConfigError("--topic: needed, unless a report is checked")
    try:
        check_topic_name(args.topic)
    except KafkaError as e:
        raise ConfigError(f"--topic: {e}") from e
    if not args.replica:
        raise ConfigError("--replica: at least one log directory is needed")
    if args.offset and args.partition is None:
        raise ConfigError("--offset: needs --partition, each has offsets of its own")
    places = [Where(path, args.topic, args.partition, sort) for path, sort in paths_given(args)]
    for where in places:
        if not is_text(where.path):
            raise ConfigError(f"{where.path!r}: its name is not UTF-8, and no report could tell it")
        if where.sort is Sort.TABLE and is_bucket(where.path):
            why = why_unusable(where.path, where.sort, [args.topic])
            if why is not None:
                raise ConfigError(f"{OPTIONS[where.sort]} {where.path}: {why}")
    return places


def paths_given(args: argparse.Namespace) -> list[tuple[str, Sort]]:
    """Of `--replica`, `--spark-local-dir` and `--table`."""
    given = {
        Sort.LOGS: args.replica, Sort.SCRATCH: args.spark_local_dir, Sort.TABLE: args.table,
    }  # fmt: skip
    found = [(path, sort) for sort, paths in given.items() for path in paths]
    for path, sort in found:
        if not is_bucket(path):
            continue
        if sort is not Sort.TABLE:
            raise ConfigError(f"{OPTIONS[sort]} {path}: allowed is a directory")
        try:
            Bucket(path)
        except ConfigError as e:
            raise ConfigError(f"{OPTIONS[sort]} {e}") from e
    return found


def place(text: str) -> str:
    """As a report has it, which is checked from anywhere."""
    return text if is_bucket(text) else os.path.abspath(text)


def keys_given(args: argparse.Namespace) -> list[bytes]:
    """Of `--key` and `--keys`."""
    keys = [parse_key(text, args.key_format) for text in args.key]
    for path in args.keys:
        keys += read_keys(path, args.key_format, args.key_column)
    return keys


def signing_key(args: argparse.Namespace) -> Any:
    """The key of `--sign-with`, or our own."""
    if args.sign_with is not None:
        return sign.load_key(args.sign_with)
    path = _own_key_path()
    key, made = sign.load_or_make_key(RealFs(), path)
    if made:
        print(f"lapse: made a key for signing: {path}; keep it", file=sys.stderr)
    return key


def _own_key_path() -> Path:
    return sign.default_key_path(os.environ, Path.home())


def _hand_out(args: argparse.Namespace, sealed: bytes) -> None:
    if args.report is not None:
        RealFs().replace_file(args.report, sealed)
    if args.json:
        sys.stdout.write(sealed.decode())


def say_key(public_key: str, report: Path | None) -> None:
    """With which key a report is signed."""
    where = "signed" if report is None else f"{report}: signed"
    print(f"{where} with key {sign.fingerprint(public_key)}, its public half:", file=sys.stderr)
    print(sign.public_pem(public_key), end="", file=sys.stderr)


# --- checking -------------------------------------------------------------------------------------


def _check(args: argparse.Namespace, clock: Clock) -> int:
    for name in ("topic", "partition", "report", "sign_with", "below_offset"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: not allowed with --check")
    if args.offset or args.spark_local_dir or args.table or args.tombstones_too:
        raise ConfigError("--check: the report says what was searched for, and where")
    path: Path = args.check
    try:
        sealed = sign.unseal(path.read_bytes(), str(path))
    except OSError as e:
        raise unreadable(e, path) from e
    report = decode_report(sealed.body, str(path))
    signer = sign.fingerprint(sealed.public_key)
    if report.key_id not in {"", signer}:
        raise StorageError(f"{path}: names key {report.key_id}, and is signed with key {signer}")
    whose, doubts = _whose(args, sealed)
    keys = keys_given(args)
    search = recalled(report.asked, keys)
    if keys and search is None:
        raise ConfigError("--key: not the keys that the report is about, or not all of them")
    if args.replica and len(args.replica) != len(report.replicas):
        raise ConfigError(f"--replica: the report has {len(report.replicas)}, in this order")
    warm_up()
    with progress_bar("comparing", clock) as on_progress:
        done, total = 0, sum(f.bytes_read for replica in report.replicas for f in replica.files)

        def on_bytes(more: int) -> None:
            nonlocal done
            done += more
            on_progress(Progress(done, max(done, total)))

        with contextlib.ExitStack() as stack:
            run_units = None
            if search is not None:
                run_units = stack.enter_context(audits(args, clock, on_progress))(search)
            checked = check(report, run_units, clock, on_bytes, args.replica)
    checked = replace(checked, verdict=doubted(checked.verdict, doubts))
    _show_check(report, checked, whose, as_json=args.json)
    return EXIT_CODES[checked.verdict.state]


def _whose(args: argparse.Namespace, sealed: sign.Sealed) -> tuple[str, tuple[str, ...]]:
    """Whose signature it is, and what speaks against it; raises StorageError if it must not be."""
    for path in args.public_key:
        if sign.load_public_key(path) == sealed.public_key:
            return f"signed with {path}", ()
    if args.public_key:
        others = ", ".join(map(str, args.public_key))
        raise StorageError(f"{args.check}: signed with another key than {others}")
    own = _own_key_path()
    if sign.own_public_key(own) == sealed.public_key:
        return f"signed with our own key, {own}", ()
    stranger = f"key {sign.fingerprint(sealed.public_key)}, which is not ours"
    doubt = (
        f"the report is signed with {stranger}: if you know whose it is, name it by --public-key"
    )
    return f"signed with {stranger}", (doubt,)


def _show_check(report: Report, checked: Checked, whose: str, *, as_json: bool) -> None:
    if as_json:
        rows: list[Any] = [*checked.differences, checked.verdict]
        show_table(rows, {}, as_json=True)
        return
    print(f"the report is as it was signed; {whose}")
    _show_what(report)
    print(f"it said, {time_text(report.ended_ms)}: {report.verdict.state}")
    print(f"{checked.as_it_was} files are as they were")
    for difference in checked.differences:
        print(f"  {difference.path}: {difference.what}")
    show_verdict(checked.replicas, report.asked, checked.verdict)


# --- telling --------------------------------------------------------------------------------------


def _show_what(report: Report) -> None:
    """Which topic of which cluster it is about, by the ids that the replicas' files have."""
    of_topic, of_cluster = map(", ".join, (report.topic_ids, report.cluster_ids))
    print(f"topic {report.topic}, id {of_topic or 'unknown'}; cluster {of_cluster or 'unknown'}")


def show_verdict(replicas: Sequence[ReplicaFindings], spec: SearchSpec, verdict: Verdict) -> None:
    """What was looked through, what is there, and what follows."""
    for replica in replicas:
        what = replica.problem or ", ".join(replica.partitions) or _nothing_there(replica)
        print(f"{replica.path}: {what}")
    print(looked_through(replicas))
    _show_targets(totals(replicas), spec)
    for reason in verdict.reasons:
        print(f"  {reason}")
    for n in verdict.never_seen[:_ROWS_MAX]:
        print(f"  of {name_of(n, spec)} nothing was ever seen, from the order on")
    print(f"verdict: {verdict.state}")


def _nothing_there(replica: ReplicaFindings) -> str:
    if replica.sort is Sort.LOGS:
        return "no partition of this topic"
    return f"{replica.sort.value}, {len(replica.files)} files"


def _show_targets(counts: dict[int, Count], spec: SearchSpec) -> None:
    targets = len(spec.keys) + len(spec.offsets)
    shown = [t for t in range(targets) if t in counts] if targets > _ROWS_MAX else range(targets)
    rows = [(name_of(t, spec), counts.get(t, Count(t))) for t in shown][:_ROWS_MAX]
    columns = {
        "target": lambda row: row[0],
        "records": lambda row: str(row[1].records),
        "tombstones": lambda row: _tombstones(row[1]),
        "at or above the bound": lambda row: str(row[1].beyond),
        "bytes in what cannot be read": lambda row: str(row[1].raw),
    }
    if spec.below_offset is None and not spec.bounds:
        del columns["at or above the bound"]
    if rows:
        show_table(rows, columns, as_json=False)
    if len(rows) < targets:
        print(f"{targets - len(rows)} more keys or offsets are not shown")


def _tombstones(count: Count) -> str:
    return f"{count.tombstones} (the key itself is in them)" if count.tombstones else "0"
