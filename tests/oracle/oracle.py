"""Python's side of the oracle: real Kafka's cleaner in one JVM, and the cases it judged.

`Oracle` speaks to `oracle.sh serve` (one JSON array a command; JSON lines and `END` come back).
`unpack_cases` and `Case` need no JVM: they read what the oracle said when the cases were made.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
SCRIPT = HERE / "oracle.sh"
ANSWER_SECONDS_MAX = 300

Option = str | int | float | bool | Path
Line = dict[str, Any]


class OracleError(Exception):
    """The oracle refused a command or died; holds what it said."""


class Oracle:
    """Real Kafka's cleaner, offline, on one partition directory at a time.

    Options are those of README.md with underscores: `oracle.clean(d, now=…, first_dirty=0)`.
    """

    def __init__(self, *, version: str | None = None) -> None:
        self._version = version

    def __enter__(self) -> Self:
        environment = dict(os.environ)
        if self._version:
            environment["KAFKA_VERSION"] = self._version
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [SCRIPT, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()

    def run(self, command: str, options: Mapping[str, Option]) -> list[Line]:
        """One command; the JSON lines it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [command, *_words(options)]
        watchdog = threading.Timer(ANSWER_SECONDS_MAX, self._end)
        watchdog.start()
        lines: list[Line] = []
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):
                    lines.append(json.loads(line))
                elif line.startswith("END 0"):
                    return lines
                elif line.startswith("END "):
                    raise OracleError(f"{' '.join(words)}: {line[6:].strip()}")
        except BrokenPipeError:
            pass
        finally:
            watchdog.cancel()
        raise OracleError(f"{' '.join(words)}: the oracle ended\n{self._last_words()}")

    def gen(
        self, directory: Path, script: Sequence[Mapping[str, Any]] | Path = (), **options: Option
    ) -> Line:
        """Write a partition at `directory` (`<topic>-<n>`), random or from a script's lines."""
        if isinstance(script, Path):
            options["script"] = script
            script = ()
        if not script:
            return self.run("gen", {"dir": directory, **options})[-1]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.writelines(json.dumps(line) + "\n" for line in script)
            f.flush()
            return self.run("gen", {"dir": directory, "script": f.name, **options})[-1]

    def clean(self, directory: Path, *, now: int, **options: Option) -> Line:
        """One cleaning pass in place; what Kafka says of it (of the last, with `passes`)."""
        return self.run("clean", {"dir": directory, "now": now, **options})[-1]

    def dump(self, directory: Path, **options: Option) -> list[Line]:
        """Batches and records, then every side file, as Kafka's own classes read them."""
        return self.run("dump", {"dir": directory, **options})

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]

    def _end(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()


def _words(options: Mapping[str, Option]) -> list[str]:
    """`first_dirty=0` as `--first-dirty 0`."""
    words: list[str] = []
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--" + name.replace("_", "-"), text]
    return words


# --- recorded cases ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """One recorded cleaning pass.

    Attributes:
        before: the partition directory Kafka was given.
        after: the one it left; the parent of each holds its checkpoint files.
        options: the oracle's options, `now` among them, names with dashes.
        result: what the oracle printed.
    """

    before: Path
    after: Path
    options: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A named case: what it shows and its passes in order."""

    name: str
    description: str
    passes: tuple[Pass, ...]


def unpack_cases(into: Path) -> Path:
    """Lay out every case under `into`; returns the folder that holds them."""
    unpack(HERE / "cases.tar.xz", into)
    return into / "cases"


def unpack(archive: Path, into: Path) -> None:
    """Lay out an archive's files under `into`."""
    with tarfile.open(archive) as tar:
        # Python before 3.11.4 (Debian 12's) has no filters; after it, none given is a warning.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
        tar.extractall(into)


def read_case(directory: Path) -> Case:
    """The case in one folder of `unpack_cases`."""
    recorded = json.loads((directory / "args.json").read_text())
    passes = tuple(
        Pass(directory / s["from"] / "t-0", directory / s["to"] / "t-0", s["opts"], s["result"])
        for s in recorded["steps"]
        if s["cmd"] == "clean"
    )
    return Case(recorded["name"], recorded["desc"], passes)


def read_dump(partition: Path) -> list[Line]:
    """The recorded dump of a case's partition directory (`…/before/t-0`)."""
    with gzip.open(f"{partition.parent}.jsonl.gz", "rt") as f:
        return [json.loads(line) for line in f]
