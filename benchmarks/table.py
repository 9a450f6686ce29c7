"""What was wanted and what was reached, as lines of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table at the end; `held` is None where there is no target or no Kafka."""

    section: str
    what: str
    target: str
    reached: str
    held: bool | None


def line_of(row: Row) -> str:
    mark = {True: "held", False: "MISSED", None: ""}[row.held]
    return f"{row.section:13}{row.what:52}{row.target:>10}  {row.reached:44}{mark}"


def print_table(rows: Sequence[Row]) -> None:
    heading = f"{'':13}{'':52}{'target':>10}  {'reached':44}"
    print("\n".join(["", heading, *(line_of(row) for row in rows)]))
