"""Whether Spark's Python workers run a Python that has Lapse, before a query fails by it.

Spark starts them by `spark.pyspark.python`, $PYSPARK_PYTHON or plain `python3`, which in a virtual
environment may be the system's: another version, without Lapse. What a query says then names
neither. Executors of other machines have files of their own, and are not looked at.
"""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql import SparkSession

from lapse.base.errors import ConfigError

_ASK = "import sys, pyarrow, pyspark, lapse; print('%d.%d' % sys.version_info[:2])"
_SECONDS_MAX = 30


def require_worker_python(spark: SparkSession) -> None:
    """Raise ConfigError where this machine's workers run another Python, or one without Lapse."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none: its server does
    if context is None or not str(context.master).startswith("local"):
        return
    trouble = trouble_of(context.pythonExec)
    if trouble:
        raise ConfigError(
            f"Spark's workers run {context.pythonExec}: {trouble}. Before the session is made, set "
            f"PYSPARK_PYTHON={sys.executable} in the environment, or spark.pyspark.python to that"
        )


def trouble_of(program: str) -> str:
    """What is wrong with a Python for workers; "": nothing."""
    own = "{}.{}".format(*sys.version_info[:2])
    if program == sys.executable:
        return ""
    try:
        done = subprocess.run(
            [program, "-c", _ASK], capture_output=True, text=True, check=False,
            timeout=_SECONDS_MAX,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"it does not start ({e})"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return lines[-1]
    found = done.stdout.strip()
    return "" if found == own else f"it is Python {found}, and this is {own}"
