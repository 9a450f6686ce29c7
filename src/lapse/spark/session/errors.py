"""What Spark says of a job that failed, in one line; and what to do about it, where that is known.

Spark reports an executor that lacks something with four Java stacks and a line of Python's between
them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_ERRORS = (Py4JError, PySparkException, OSError, EOFError)
_LENGTH_MAX = 500
_SEE = 'docs/cluster.md, "Getting Lapse onto the executors"'
# What a line says → what that means.
_KNOWN: Mapping[re.Pattern[str], str] = {
    re.compile(
        r"^\s*(?P<python>\S+): (?:Error while finding module .*)?"
        r"(?:\(ModuleNotFoundError: )?No module named '?(?P<module>lapse\b)"
    ): (
        "the executors' Python, {python}, has no {module}: install Lapse there, or send it along "
        f"and name its Python in PYSPARK_PYTHON ({_SEE})"
    ),
    re.compile(r"ModuleNotFoundError: No module named '(?P<module>[^']+)'"): (
        "the executors' Python has no {module}, which Lapse needs: give it the packages that the "
        f"driver has ({_SEE})"
    ),
    re.compile(r'Cannot run program "(?P<python>[^"]+)"'): (
        "the executors cannot run {python}: PYSPARK_PYTHON names the Python there, the same path "
        f"on each ({_SEE})"
    ),
    re.compile(r"PYTHON_VERSION_MISMATCH\] .*(?P<what>Python in worker has different version.*)"): (
        f"the executors' Python is another than the driver's: {{what}} ({_SEE})"
    ),
}


def text_of(error: BaseException) -> str:
    """What happened, without a Java stack."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        with contextlib.suppress(*SPARK_ERRORS):  # the JVM that knows the reason may be gone
            return str(java.getMessage())
    return str(error)


def in_one_line(text: str) -> str:
    """The reason, and what to do; else the first line of what Spark says."""
    lines = text.strip().splitlines()
    for line in lines:
        for pattern, meaning in _KNOWN.items():
            found = pattern.search(line)
            if found is not None:
                return meaning.format(**found.groupdict())
    return lines[0][:_LENGTH_MAX] if lines else ""
