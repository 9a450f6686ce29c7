"""The view of the ledger: which records left which segment in which round, and why.

Only logs that Lapse cleans have a ledger. Offsets are given as ranges, so that a row of a million
removed records stays small; never a key or a value, which no ledger holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lapse.lifecycle.outlook.rows import Row, ledger_rows_of
from lapse.lifecycle.round.ledger import read
from lapse.spark.views.logs import of_log, partitions_of
from lapse.spark.views.spec import ViewUnit


def ledger_rows(unit: ViewUnit) -> Iterator[Row]:
    """Rows of the unit's logs, oldest first in each. Raises CorruptData with file and position."""
    for partition in partitions_of(unit):
        partition_dir = Path(unit.log_dir) / str(partition)
        of_this = of_log(unit, partition)
        for entry in read(partition_dir):
            for row in ledger_rows_of(entry, partition_dir):
                yield {**of_this, **row}
