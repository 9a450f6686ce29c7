"""What is made of Spark's words; they are Spark 4.2's."""

from __future__ import annotations

import pytest

from lapse.spark.session.errors import in_one_line

ABORTED = (
    "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent failure: "
    "Lost task 1.3 in stage 0.0 (TID 6) (127.0.0.1 executor 1): "
)
STACK = "\n\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory)"


FROM_WORKER = "org.apache.spark.SparkException: \nError from python worker:\n"
NO_LAPSE = f"""{FROM_WORKER}  /opt/bare/python: Error while finding module specification for \
'lapse.spark.rounds.daemon' (ModuleNotFoundError: No module named 'lapse')
PYTHONPATH was:
  /x/pyspark.zip"""
NO_NUMBA = f"""{FROM_WORKER}  Traceback (most recent call last):
    import numba
  ModuleNotFoundError: No module named 'numba'"""
OTHER_VERSION = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has \
different version: 3.12 than that in driver: 3.11, PySpark cannot run with different ones."""


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (NO_LAPSE, "the executors' Python, /opt/bare/python, has no lapse: install Lapse there"),
        (
            f"{FROM_WORKER}  /usr/bin/python3: No module named lapse.spark.rounds.daemon",
            "the executors' Python, /usr/bin/python3, has no lapse: install Lapse there",
        ),
        (NO_NUMBA, "the executors' Python has no numba, which Lapse needs"),
        (
            'java.io.IOException: Cannot run program "/opt/gone/python": error=2, No such file',
            "the executors cannot run /opt/gone/python: PYSPARK_PYTHON names",
        ),
        (OTHER_VERSION, "the executors' Python is another than the driver's: Python in worker has"),
    ],
)
def test_what_an_executor_lacks_is_said_in_one_line(said: str, meant: str) -> None:
    told = in_one_line(ABORTED + said + STACK)
    assert told.startswith(meant)
    assert told.endswith('(docs/cluster.md, "Getting Lapse onto the executors")')
    assert "\n" not in told


def test_anything_else_is_told_by_its_first_line() -> None:
    assert in_one_line(f"Job 3 cancelled as part of cancelled job group{STACK}") == (
        "Job 3 cancelled as part of cancelled job group"
    )
    assert len(in_one_line("x" * 1000)) == 500
    assert in_one_line(" \n") == ""
