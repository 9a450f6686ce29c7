"""Keeps the data directory that this commit leaves behind: `make keep NAME=018`.

Writes `NAME.tar.xz` beside this file, with one directory for each state that a broker may leave
(README.md), and what stock clients saw of it. Every later commit must open it and show the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from lapse.base.clock import SystemClock
from lapse.cli.main import main as lapse
from lapse.lifecycle.owner.messages import SOCKET
from lapse.log.intent import INTENT
from lapse.log.summary import FOLDER
from lapse.log.swap import DELETED
from lapse.testing.broker_process import BrokerProcess
from tests.golden.kept import traffic
from tests.golden.kept.observe import observe

HERE = Path(__file__).parent
EXPECTED = "expected.json"
CLEAN, KILLED, INTERRUPTED = STATES = ("clean", "killed", "interrupted")
TRIES = 20


def _clean(data: Path, later_ms: int) -> None:
    now = str(SystemClock().now_ms() + later_ms)
    assert lapse(["clean", str(data), "--force", "--engine", "inline", "--now", now]) == 0


def _interrupt(clean: Path, into: Path) -> None:
    """A copy that a `lapse clean` has left which was killed between a rename and the ledger."""
    log = into / "customers-0"
    for _ in range(TRIES):
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(clean, into)
        command = [sys.executable, "-m", "lapse.cli.main", "clean", str(into), "--force",
                   "--engine", "inline", "--partition", log.name]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not _has_renamed(log):
                time.sleep(0)  # gives the other process the core; there are a few ms to hit
            process.kill()
        if (log / FOLDER / INTENT).exists() and _has_renamed(log):
            return
    raise SystemExit(f"no commit was interrupted in {TRIES} tries")


def _has_renamed(log: Path) -> bool:
    return any(entry.name.endswith(DELETED) for entry in os.scandir(log))


def _write(work: Path) -> dict[str, Any]:
    """The three directories in `work`; what clients saw of two of them."""
    data = work / "data"
    broker = BrokerProcess(data, traffic.BROKER)
    with broker:
        traffic.lay_out(broker.bootstrap)
        traffic.write(broker.bootstrap, 0)
    _clean(data, 60_000)
    with broker:
        traffic.write(broker.bootstrap, 1)
        traffic.delete_records(broker.bootstrap, 40)
    _clean(data, 120_000)  # what was stamped before goes now
    expected = {}
    with broker:
        traffic.write(broker.bootstrap, 2)
        expected[CLEAN] = observe(broker.bootstrap, traffic.GROUPS)
    shutil.copytree(data, work / CLEAN)
    _interrupt(work / CLEAN, work / INTERRUPTED)
    broker.start()
    opener = traffic.leave_open(broker.bootstrap)
    traffic.write(broker.bootstrap, 3)
    expected[KILLED] = observe(broker.bootstrap, traffic.GROUPS)
    broker.kill()
    del opener
    shutil.copytree(data, work / KILLED, ignore=shutil.ignore_patterns(SOCKET))
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(prog="make keep", description=__doc__)
    parser.add_argument("name", help="of the archive: the issue, and what it was about")
    archive = HERE / f"{parser.parse_args().name}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        expected = _write(work)
        (work / EXPECTED).write_text(json.dumps(expected, indent=1))
        with tarfile.open(archive, "w:xz") as packed:
            for name in (EXPECTED, *STATES):
                packed.add(work / name, name, filter=_anonymous)
    print(f"{archive.relative_to(HERE.parents[2])}: {os.path.getsize(archive):,} bytes")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
