"""Lapse as a user runs it, `lapse up` in a directory of its own, and who is who in it.

All its processes carry the run's mark in their environment: so they are found wherever their
parents are, and none is left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from lapse.testing.ports import own_port
from tests.spark import processes

MARK = "LAPSE_CHAOS_RUN"
READY = re.compile(r"ready kafka=(?P<kafka>\S+) http=(?P<http>\S+)")
START_SECONDS_MAX = 120.0  # recovery, on a busy machine
STOP_SECONDS_MAX = 60.0
ROLES = ("up", "broker", "service", "java", "daemon", "worker")


class NotUp(Exception):
    """`lapse up` does not serve; the message holds the end of its log."""


class House:
    """A running `lapse up` that may be hurt in every way, and is started again.

    Args:
        data: its directory; settings: for `-c`; environment: added to its processes'.

    Attributes:
        kafka, http: where it listens, the same in all its lives.
        log_path: what all its processes said, over all its lives.
    """

    def __init__(
        self, data: Path, log_path: Path, settings: Mapping[str, str],
        environment: Mapping[str, str], *options: str,
    ) -> None:  # fmt: skip
        self.data, self.log_path = data, log_path
        self.kafka, self.http = (f"127.0.0.1:{own_port()}" for _ in range(2))
        self._mark = secrets.token_hex(8)
        self._words = [*(w for pair in settings.items() for w in ("-c", "=".join(pair))), *options]
        self._environment = {**os.environ, **environment, MARK: self._mark}
        self._environment["PYTHONUNBUFFERED"] = "1"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Until it serves. Raises NotUp."""
        kafka, http = (place.rpartition(":")[2] for place in (self.kafka, self.http))
        command = [
            sys.executable, "-m", "lapse.cli.main", "up", "--data", str(self.data),
            "--port", kafka, "--http-port", http, *self._words,
        ]  # fmt: skip
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                env=self._environment,
            )  # fmt: skip
        assert self._process.stdout is not None
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        came = waiting.poll(1000 * START_SECONDS_MAX)
        found = READY.match(self._process.stdout.readline()) if came else None
        if found is None:
            self._forget()
            raise NotUp(f"lapse up does not serve:\n{self.log()[-4000:]}")
        self.kafka, self.http = found["kafka"], found["http"]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    # --- who is who --------------------------------------------------------------------------

    def pids(self, role: str) -> list[int]:
        """Of one of `ROLES`, of all that are alive."""
        return [pid for pid, its in self.roles().items() if its == role]

    def roles(self) -> dict[int, str]:
        """Everybody who carries the mark and is alive."""
        found = {}
        for process in processes.marked(f"{MARK}={self._mark}"):
            words = process.words
            if words[0].endswith("java"):
                found[process.pid] = "java"
            elif "lapse.cli.main" in words:
                command = words[words.index("lapse.cli.main") + 1]
                found[process.pid] = "service" if command == "lifecycle" else command
            else:
                found[process.pid] = "daemon"
        parents = {p.pid: p.parent for p in processes.marked(f"{MARK}={self._mark}")}
        for pid in [pid for pid, role in found.items() if role == "daemon"]:
            if found.get(parents.get(pid, 0)) in {"daemon", "worker"}:
                found[pid] = "worker"
        return found

    def victims(self, who: str) -> list[int]:
        """Whom a fault means: a role, or `house` for everybody."""
        return list(self.roles()) if who == "house" else self.pids(who)

    # --- hurting it ---------------------------------------------------------------------------

    def send(self, pids: Iterable[int], how: signal.Signals) -> None:
        """Who is gone already is fine."""
        processes.kill(list(pids), how)

    def kill(self, who: str) -> bool:
        """`kill -9`; whether anybody was there."""
        pids = self.victims(who)
        self.send(pids, signal.SIGKILL)
        return bool(pids)

    @contextlib.contextmanager
    def broker_down(self) -> Iterator[None]:
        """While the broker is dead and `up` does not see it: for changes to its files."""
        ups = self.pids("up")
        self.send(ups, signal.SIGSTOP)
        self.kill("broker")
        wait_until(lambda: not self.pids("broker"), "the broker to die", 30)
        try:
            yield
        finally:
            self.send(ups, signal.SIGCONT)

    def revive(self) -> bool:
        """Start `up` again if it has ended; whether it had. Raises NotUp."""
        if self._process is not None and self._process.poll() is None:
            return False
        self._forget()
        wait_until(lambda: not self._old_ones(), "its children to follow it", STOP_SECONDS_MAX)
        self.start()
        return True

    def _old_ones(self) -> list[int]:
        """Who lives on without `up`; those that stand still are set going, so that they can end."""
        pids = list(self.roles())
        self.send(pids, signal.SIGCONT)
        return pids

    # --- how it is ------------------------------------------------------------------------------

    def page(self, path: str, seconds_max: float = 5.0) -> tuple[int, str]:
        """Status and text of a page of the broker's; (0, reason) if it does not answer."""
        url = f"http://{self.http}{path}"
        try:
            with urllib.request.urlopen(url, timeout=seconds_max) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
        except OSError as e:
            return 0, str(e)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- the end ----------------------------------------------------------------------------------

    def stop(self) -> int:
        """A clean stop; its exit code."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise NotUp(f"does not stop; its log ends:\n{self.log()[-4000:]}") from None
        self._forget()
        return code

    def close(self) -> list[str]:
        """By force, whatever stands in the way; who was alive yet, in words."""
        self._forget()
        left = [f"{role} {pid}" for pid, role in self.roles().items()]
        until = time.monotonic() + STOP_SECONDS_MAX
        while pids := list(self.roles()):
            self.send(pids, signal.SIGKILL)
            if time.monotonic() > until:
                raise NotUp(f"cannot be killed: {left}")
            time.sleep(0.05)
        return left

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_until(true: Callable[[], bool], what: str, seconds_max: float) -> None:
    """Raises NotUp where it does not come to that in time."""
    until = time.monotonic() + seconds_max
    while not true():
        if time.monotonic() > until:
            raise NotUp(f"waited {seconds_max:.0f} s for {what}")
        time.sleep(0.02)
