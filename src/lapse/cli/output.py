"""Tables for people, JSON lines for scripts, a progress bar for long work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lapse.base.clock import Clock
from lapse.cli.confirm import is_terminal
from lapse.lifecycle.round.progress import OnProgress
from lapse.lifecycle.round.progress import Progress as RoundProgress

SHOW_AFTER_SECONDS = 2.0

Columns = Mapping[str, Callable[[Any], str]]


def show_table(rows: Sequence[Any], columns: Columns, *, as_json: bool) -> None:
    """Rows as JSON lines (all fields) or as an aligned table (the columns)."""
    if as_json:
        for row in rows:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, width=width, highlight=False, markup=False).print(table)


def say_starting() -> None:
    """To who waits at a terminal: nothing else is to be seen for a while."""
    if is_terminal(sys.stderr):
        print("lapse: starting Spark (once, about 10 s) …", file=sys.stderr, flush=True)


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
        if not shown and sys.stderr.isatty() and clock.monotonic() - started > SHOW_AFTER_SECONDS:
            bar.start()
            shown = True
        bar.update(task, completed=progress.bytes_done, total=progress.bytes_total)

    try:
        yield update
    finally:
        if shown:
            bar.stop()
