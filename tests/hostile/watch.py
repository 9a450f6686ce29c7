"""What this process does to files, names and peers, told by Python's audit hooks.

A hook cannot be taken back; it tells nothing while no `Watch` is open.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Event -> which of its arguments are paths.
_PATHS = {
    "open": (0,),
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (0, 1),
    "os.symlink": (0, 1),
    "os.listdir": (0,),
    "os.scandir": (0,),
    "os.chmod": (0,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "sqlite3.connect": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
}
# Nobody asks a broker for these.
_NEVER = frozenset(
    {
        *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind"),
        *("socket.sendto", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn"),
    }
)
# What Python reads of itself: modules and their sources, kernels, facts of the machine.
_OWN = tuple(
    {
        *(os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"))),
        *("/proc", "/sys", "/dev"),
        str(Path(__file__).resolve().parents[2] / "src"),
        str(Path(__file__).resolve().parents[2] / "tests"),
    }
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """What happened that should not; `seen` counts what was looked at."""

    def __init__(self, folder: Path) -> None:
        self.breaches: list[str] = []
        self.seen = 0
        self._folder = os.path.realpath(folder)

    def judge(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by the hook, in any thread."""
        if event in _NEVER:
            self.seen += 1
            self.breaches.append(f"{event} {arguments!r}")
        for place in _PATHS.get(event, ()):
            path = arguments[place]
            if isinstance(path, str | bytes | os.PathLike):
                self.seen += 1
                is_read = event == "open" and not int(arguments[2] or 0) & _WRITES
                self._judge_path(event, os.fsdecode(path), is_read=is_read)

    def _judge_path(self, event: str, path: str, *, is_read: bool) -> None:
        real = os.path.realpath(path) if "\0" not in path else path
        if real == self._folder or real.startswith(self._folder + os.sep):
            return
        if real.startswith(_OWN) and (is_read or event in {"os.listdir", "os.scandir"}):
            return
        self.breaches.append(f"{event} {path!r}")


_watches: list[Watch] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _watches:
        watch.judge(event, arguments)


@contextmanager
def watched(folder: Path) -> Iterator[Watch]:
    """While it is open, files outside of the folder are not touched and nobody is talked to."""
    if not _installed:
        sys.addaudithook(_hook)
        _installed.append(True)
    watch = Watch(folder)
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)


_installed: list[bool] = []
