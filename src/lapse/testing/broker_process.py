"""A broker in a separate process, for tests: ports of its own, waits until ready, dies on demand.

    with BrokerProcess(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The same directory may be started again; `kill` is what a power cut does to a process.
"""

from __future__ import annotations

import re
import select
import signal
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Self

from lapse.base.errors import LapseError
from lapse.base.fs import RealFs
from lapse.base.properties import properties_text
from lapse.testing import warm
from lapse.testing.ports import own_port

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
_READY = re.compile(
    r"ready kafka=(?P<kafka>\S+)(?: http=(?P<http>\S+))?(?: listeners=(?P<all>\S+))?"
)


class BrokerFailed(LapseError):
    """The process ended, or did not get ready; the message holds the end of its log."""


class BrokerProcess:
    """`lapse broker` over a data directory; `environment` is added to this process's own.

    Attributes:
        bootstrap: host and port for clients, once started.
        http: host and port of health and metrics.
        listeners: host and port by the listener's name, where there are several.
        log_path: what the process wrote to its log (standard error).
    """

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.environment = dict(environment or {})
        self.settings = dict(settings or {})
        self.log_path = data.with_name(data.name + ".broker.log")
        self.config_path = data.with_name(data.name + ".properties")
        self.bootstrap = ""
        self.http = ""
        self.listeners: dict[str, str] = {}
        self._port, self._http_port = own_port(), own_port()
        self._process: warm.Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()

    @property
    def pid(self) -> int:
        """The process, for signals and for CPU and memory figures."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it was started, and not stopped or killed since."""
        return self._process is not None

    def log(self) -> str:
        """What the broker has logged so far, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> Self:
        """Start it, on ports that stay its own while it is down."""
        assert self._process is None, "already running"
        fs = RealFs()
        fs.make_dir(self.data)
        settings = {
            "log.dirs": str(self.data),
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "lapse.http.port": str(self._http_port),
            **self.settings,
        }
        fs.write_file(self.config_path, properties_text(settings))
        with closing(fs.open_append(self.log_path)) as log:
            self._process = warm.start(
                ["broker", str(self.config_path)], log.fileno(), self.environment
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def _wait_until_ready(self, process: warm.Process) -> None:
        assert process.stdout is not None
        waiting = select.poll()  # not `select`, which knows no descriptor above 1023
        waiting.register(process.stdout, select.POLLIN | select.POLLHUP)
        line = process.stdout.readline() if waiting.poll(1000 * START_SECONDS_MAX) else ""
        found = _READY.search(line)
        if found is None:
            raise BrokerFailed(f"the broker did not get ready; its log ends:\n{self.log()[-4000:]}")
        self.bootstrap = found["kafka"]
        self.http = found["http"] or ""
        self.listeners = dict(one.split("://") for one in (found["all"] or "").split(",") if one)

    def stop(self) -> int:
        """A clean shutdown; returns the exit code."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Until it ends by itself; returns the exit code."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise BrokerFailed(f"did not stop; its log ends:\n{self.log()[-4000:]}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """`kill -9`, if it is there still."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
