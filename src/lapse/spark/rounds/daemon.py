"""Spark's Python daemon, with everything a task needs loaded before it forks a worker.

Spark starts it as a module (`spark.python.daemon.module`), reads the port it listens at from its
standard output, and requests one worker for each task slot. A worker forked from here begins its
first task in milliseconds; one that had to load the kernels itself would take a second.
"""

from __future__ import annotations

import logging

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.lifecycle.warm_up import warm_up
from lapse.spark.rounds import split_task, task  # noqa: F401  (for the workers that it forks)
from lapse.spark.session.workers import serve_workers

logger = logging.getLogger(__name__)


def main() -> None:
    """Warm up, then serve until Spark closes our standard input."""
    try:
        warm_up(RealFs())
    except StorageError as e:
        logger.warning("Spark's workers begin cold: %s", e)
    serve_workers()


if __name__ == "__main__":
    main()
