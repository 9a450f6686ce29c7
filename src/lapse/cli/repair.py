"""`lapse repair LOGDIR`: what is missing or cannot be read, and what a person decides about it.

Without one of the choices it only looks: it says, log by log, which offsets are not there or do
not read, why, and which choice there is. To put back what is missing (from a backup, or from
wherever it was moved) is always better, and needs no choice.

A broker keeps a log offline whose segments or folder are gone, or whose synced bytes are damaged:
it does not serve it as if the records had never been. Each choice lets it open again:

  --accept-hole   segments that are gone or cut short: the log goes on without those offsets
  --accept-empty  a folder that is gone: the log begins empty, at the offset where it had ended
  --cut           damaged bytes, zeros for one, in the last segment: cut off there
  --let-go        a place in a sealed segment that does not read, and holds rounds back: the
                  segment is rewritten with all that reads
  --fetch-anew    a log that other brokers have, too: the broker removes what it has of it, and
                  fetches it from them, when it starts and another one is in sync
  --accept-epochs a batch that names a leader epoch that was never noted: its byte is damaged, or
                  the file's; the file is made anew by what batches say

A broker does not start where what it keeps of topics, settings or users is damaged: a byte may be
a retention. Put `lapse-metadata.sqlite` back from a copy, or:

  --accept-metadata  what it says now is right: look at it with `lapse topic` and `lapse config`
                     before anything is deleted by it

What other brokers have is fetched from them: a hole would be theirs, too, once this broker leads.
Where none of them has what is missing either, --alone offers the other choices.

No offset is given twice, and bytes that are cut off or let go are kept for a week below the
partition's .lapse, up to 256 MiB of each. The directory must not be served meanwhile.

Exit 1 where something is left to be decided.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.errors import LapseError, StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli import options
from lapse.cli.tables import show_table
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.repair import Choice, Finding, decide, look, require_logs
from lapse.metadata import sqlite

_DONE, _FINDING = 0, 1
_ACCEPT_METADATA = "accept-metadata"
_HELP = {
    Choice.ACCEPT_HOLE: "let logs go on without segments that are gone or cut short",
    Choice.ACCEPT_EMPTY: "let partitions whose folder is gone begin empty, where they had ended",
    Choice.CUT: "cut the last segment off where its bytes are damaged",
    Choice.LET_GO: "rewrite sealed segments without what does not read",
    Choice.FETCH_ANEW: "let the broker fetch logs from others that have them, when it starts",
    Choice.ACCEPT_EPOCHS: "let leader epochs be those that batches name, not those of the file",
}

EXAMPLES = """\
examples:
  lapse repair /var/lib/lapse
  lapse repair /var/lib/lapse --partition orders-3 --accept-hole --dry-run
  lapse repair /var/lib/lapse --partition orders-3 --accept-hole
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("logdir", type=Path, metavar="LOGDIR", help="a data directory")
    parser.add_argument(
        "--partition", action="append", default=[], metavar="TOPIC-N",
        help="only this log; may be repeated",
    )  # fmt: skip
    for choice, text in _HELP.items():
        parser.add_argument(f"--{choice}", action="store_true", help=text)
    parser.add_argument(
        f"--{_ACCEPT_METADATA}", action="store_true",
        help="let what is kept of topics, settings and users hold as it is, though damaged",
    )  # fmt: skip
    parser.add_argument(
        "--read", action="store_true", help="read all segments, not only what is known to be bad"
    )
    parser.add_argument(
        "--alone", action="store_true", help="no other broker has what is missing, either"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what the choices would do; change nothing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


@dataclass(frozen=True, slots=True)
class RepairLine:
    """What is said of one finding.

    Attributes:
        partition: empty where it is of the metadata; then without offsets, too.
        offline: a broker does not open the log until this is decided.
        choice: the option that would settle it; empty where none would.
        outcome: what was done; None where nothing was.
    """

    partition: str
    first_offset: int
    end_offset: int
    why: str
    offline: bool
    choice: str
    outcome: str | None = None
    error: str | None = None


def run(args: argparse.Namespace) -> int:
    """Look, decide what the options allow, and print a line for each finding."""
    options.partitions_in(args.logdir)  # refuses what is no directory
    wanted = [options.partition(name) for name in args.partition]
    if wanted:
        require_logs(args.logdir, wanted)
    chosen = {choice for choice in Choice if getattr(args, choice.replace("-", "_"))}
    lines = _of_metadata(args)
    if not chosen or args.dry_run:
        lines += [_line(found, chosen) for found in _found(args, wanted)]
    else:
        lines += _repaired(args, wanted, chosen)
    columns = {
        "partition": lambda line: line.partition or "-",
        "offsets": lambda line: (
            f"{line.first_offset} to {line.end_offset - 1}" if line.partition else "-"
        ),
        "what is wrong": lambda line: line.why,
        "offline": lambda line: "yes" if line.offline else "no",
        "choice": lambda line: f"--{line.choice}" if line.choice else "-",
        "outcome": lambda line: line.error or line.outcome or "-",
    }
    if lines or args.json:
        show_table(lines, columns, as_json=args.json, sentences={"what is wrong", "outcome"})
    else:
        print("nothing is missing")
    left = any(line.outcome is None or line.error for line in lines)
    return _FINDING if left else _DONE


def _of_metadata(args: argparse.Namespace) -> list[RepairLine]:
    """What is damaged of topics, settings and users; accepted under the directory's lock."""
    path = args.logdir / sqlite.STORE
    try:
        damaged = sqlite.damaged_tables(path) if path.exists() else []
    except StorageError as e:  # logs are looked at all the same
        return [RepairLine("", 0, 0, f"{e}; put the file back from a copy", True, "")]
    lines = [
        RepairLine("", 0, 0, f"{table}: not as they were stored", True, _ACCEPT_METADATA)
        for table in damaged
    ]
    if not (lines and args.accept_metadata):
        return lines
    if args.dry_run:
        error = f"would be settled by --{_ACCEPT_METADATA}"
        return [replace(line, error=error) for line in lines]
    with contextlib.closing(LogDirectory.open(args.logdir, LogEnv(RealFs(), SystemClock()))):
        sqlite.accept_as_it_is(path)
    return [replace(line, outcome="accepted as they are") for line in lines]


def _found(args: argparse.Namespace, wanted: list[TopicPartition]) -> list[Finding]:
    found = look(args.logdir, wanted, reads_all=args.read)
    if args.alone:
        found = [one if one.alone is None else replace(one, choice=one.alone) for one in found]
    return found


def _line(found: Finding, chosen: set[Choice]) -> RepairLine:
    made = RepairLine(
        str(found.partition), found.first_offset, found.end_offset, found.why, found.is_offline,
        found.choice.value,
    )  # fmt: skip
    if found.is_decided and found.choice is Choice.FETCH_ANEW:
        return replace(made, outcome="is fetched anew when the broker starts")
    if found.choice in chosen:
        return replace(made, error=f"would be settled by --{found.choice}")
    return made


def _repaired(
    args: argparse.Namespace, wanted: list[TopicPartition], chosen: set[Choice]
) -> list[RepairLine]:
    """Under the directory's lock; what is wrong with one log keeps none of the others.

    Found again once the directory is owned: what a person saw may have changed. And again where
    something was done: one finding may hide another.
    """
    fs, clock = RealFs(), SystemClock()
    lines: list[RepairLine] = []
    tried: set[tuple[TopicPartition, int, Choice]] = set()
    with contextlib.closing(LogDirectory.open(args.logdir, LogEnv(fs, clock))) as directory:
        found = _found(args, wanted)
        while True:
            todo = [one for one in found if one.choice in chosen and _key(one) not in tried]
            done = {one.partition for one in todo}
            lines += [_line(one, set()) for one in found if one.partition not in done]
            if not todo:
                return sorted(lines, key=lambda line: options.partition(line.partition))
            for one in todo:
                tried.add(_key(one))
                line = _line(one, set())
                try:
                    said = decide(directory, fs, one, topic_config({}))
                    lines.append(replace(line, outcome=said))
                except (LapseError, OSError) as e:
                    lines.append(replace(line, error=str(e)))
            found = [one for one in _found(args, sorted(done)) if not _is_said(one, tried, lines)]


def _key(found: Finding) -> tuple[TopicPartition, int, Choice]:
    return found.partition, found.first_offset, found.choice


def _is_said(
    found: Finding, tried: set[tuple[TopicPartition, int, Choice]], lines: list[RepairLine]
) -> bool:
    """Whether a line says so: it could not be settled, or a broker is to see to it."""
    if _key(found) not in tried:
        return False
    is_waiting = found.is_decided and found.choice is Choice.FETCH_ANEW
    same = (str(found.partition), found.first_offset, found.choice.value)
    return is_waiting or any(
        line.error and (line.partition, line.first_offset, line.choice) == same for line in lines
    )
