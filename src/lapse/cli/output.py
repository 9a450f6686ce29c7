"""What who waits at a terminal sees of long work."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from lapse.base.clock import Clock
from lapse.cli.confirm import is_terminal
from lapse.lifecycle.round.progress import OnProgress
from lapse.lifecycle.round.progress import Progress as RoundProgress

SHOW_AFTER_SECONDS = 2.0


def say_starting() -> None:
    """To who waits at a terminal: nothing else is to be seen for a while."""
    if is_terminal(sys.stderr):
        print("lapse: starting Spark (once, about 10 s) …", file=sys.stderr, flush=True)


class OnCount(Protocol):
    """Told what is done, how much of it, and of how much; None: nobody knows."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


@contextlib.contextmanager
def count_bar(clock: Clock) -> Iterator[OnCount]:
    """As `progress_bar`, for what is not counted in bytes; may be told by several threads."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    task = bar.add_task("", total=None)
    shown, started, lock = False, clock.monotonic(), threading.Lock()

    def update(what: str, done: int, total: int | None) -> None:
        nonlocal shown
        with lock:
            bar.update(task, description=what, completed=done, total=total)
            is_long = clock.monotonic() - started > SHOW_AFTER_SECONDS
            if not shown and is_long and is_terminal(sys.stderr):
                bar.start()
                shown = True

    try:
        yield update
    finally:
        with lock:
            if shown:
                bar.stop()


@contextlib.contextmanager
def progress_bar(title: str, clock: Clock) -> Iterator[OnProgress]:
    """A bar on stderr that appears once something has taken more than two seconds."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=None)
    shown, started = False, clock.monotonic()

    def update(progress: RoundProgress) -> None:
        nonlocal shown
        is_long = clock.monotonic() - started > SHOW_AFTER_SECONDS
        if not shown and is_long and is_terminal(sys.stderr):
            bar.start()
            shown = True
        bar.update(task, completed=progress.bytes_done, total=progress.bytes_total)

    try:
        yield update
    finally:
        if shown:
            bar.stop()
