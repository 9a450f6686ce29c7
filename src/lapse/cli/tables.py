"""Tables for people, JSON lines for scripts.

A table is as wide as what is in it. Where a terminal has less room, cells are folded; those that
are sentences come below their row instead, in lines of their own.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from lapse.cli.confirm import is_terminal

Columns = Mapping[str, Callable[[Any], str]]

_BETWEEN = "  "
_INDENT = "    "


def show_table(
    rows: Sequence[Any], columns: Columns, *, as_json: bool, sentences: Collection[str] = ()
) -> None:
    """Rows as JSON lines (all fields) or as a table; `sentences`: which columns are such."""
    if as_json:
        for row in rows:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        return
    lines = [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    print_table(lines, sentences)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    header: Sequence[str],
    cells: Callable[[Mapping[str, Any]], Sequence[str]],
    *,
    as_json: bool,
    sentences: Collection[str] = (),
) -> None:
    """One JSON object a line, or a table of the cells of each."""
    if not as_json:
        print_table([header, *map(cells, rows)], sentences)
        return
    for row in rows:
        print(json.dumps(row))


def print_table(lines: Sequence[Sequence[str]], sentences: Collection[str] = ()) -> None:
    """Aligned columns; the first line is the header, `sentences` some of its names."""
    room = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    if room is None or _width(lines) <= room:
        _print_aligned(lines)
        return
    header = lines[0]
    short = [n for n, name in enumerate(header) if name not in sentences]
    brief = [[line[n] for n in short] for line in lines]
    if len(short) == len(header) or _width(brief) > room:
        _print_folded(lines, room)
        return
    below = [n for n in range(len(header)) if n not in short]
    _print_aligned(brief, [[f"{header[n]}: {line[n]}" for n in below] for line in lines], room)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]


def _width(lines: Sequence[Sequence[str]]) -> int:
    widths = _widths(lines)
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _print_aligned(
    lines: Sequence[Sequence[str]], below: Sequence[Sequence[str]] = (), room: int = 0
) -> None:
    widths = _widths(lines)
    for n, line in enumerate(lines):
        cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print(_BETWEEN.join(cells).rstrip())
        for sentence in below[n] if below and n else ():
            print(textwrap.fill(
                sentence, room, initial_indent=_INDENT, subsequent_indent=_INDENT
            ))  # fmt: skip


def _print_folded(lines: Sequence[Sequence[str]], room: int) -> None:
    from rich.console import Console  # noqa: PLC0415  (a third of what a small command takes)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in lines[0]:
        table.add_column(name, overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    Console(file=sys.stdout, width=room, highlight=False, markup=False).print(table)
