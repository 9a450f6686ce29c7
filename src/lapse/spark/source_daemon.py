"""Spark's Python daemon where a session reads and writes by `format("lapse")` and makes no rounds.

As `rounds.daemon`, with what the data source needs loaded in place of what rounds need: Arrow, the
client, the kernels of columns. Measured on two cores: a worker has 22 MiB of its own then, instead
of 55 to 70, and its first batch half a second of CPU earlier. `rounds.daemon` does not load it too:
sessions of rounds would pay 40 MiB and that half a second for nothing.

`source.SETTINGS` names it. Spark's planning processes have daemons of Spark's own.
"""

from __future__ import annotations

from lapse.records import columns, from_arrow, row_digest
from lapse.spark import source  # noqa: F401  (as the next two, for the workers that it forks)
from lapse.spark.scan import read  # noqa: F401
from lapse.spark.session.workers import serve_workers
from lapse.spark.source import stream, write  # noqa: F401


def main() -> None:
    """Warm up, then serve until Spark closes our standard input."""
    columns.warm_up()
    from_arrow.warm_up()
    row_digest.warm_up()
    serve_workers()


if __name__ == "__main__":
    main()
