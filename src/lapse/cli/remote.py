"""What commands share that talk to a broker as Kafka's own tools do: options, settings, tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lapse.base.errors import ConfigError, StorageError
from lapse.base.properties import read_properties
from lapse.client.admin import TIMEOUT_MS


def add_remote(parser: argparse.ArgumentParser) -> None:
    """`--bootstrap-server` and `--command-config`."""
    parser.add_argument(
        "--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT,…",
        help="brokers to ask first (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE",
        help="a client's properties: security.protocol, ssl.*, sasl.*, request.timeout.ms",
    )  # fmt: skip


def client_properties(path: Path | None) -> Mapping[str, str]:
    """`--command-config`; raises StorageError where it cannot be read."""
    if path is None:
        return {}
    try:
        return read_properties(path)
    except OSError as e:
        raise StorageError(f"{path}: {e.strerror}") from e


def request_timeout_ms(properties: Mapping[str, str]) -> int:
    """`request.timeout.ms`, 30 s without one; raises ConfigError."""
    text = properties.get("request.timeout.ms", str(TIMEOUT_MS))
    if not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise ConfigError(f"request.timeout.ms={text}: allowed is a number of milliseconds above 0")
    return int(text)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    header: Sequence[str],
    cells: Callable[[Mapping[str, Any]], Sequence[str]],
    *,
    as_json: bool,
) -> None:
    """One JSON object a line, or a table of the cells of each."""
    if not as_json:
        print_table([header, *map(cells, rows)])
        return
    for row in rows:
        print(json.dumps(row))


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Aligned columns; the first line is the header."""
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    for line in lines:
        cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
