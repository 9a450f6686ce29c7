"""What makes a folder of Parquet files a table of some format: a log that says which of them count.

Plain Parquet has none: there the folder is all there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from lapse.base.bucket import Bucket
from lapse.base.errors import ConfigError, LapseError, StorageError
from lapse.base.extras import needed_for
from lapse.spark.export.decide import Format
from lapse.spark.export.store import Folder

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Change:
    """What one version does: files, named from the table's folder on.

    Attributes:
        at_ms: when, as the log says.
        note: for `TableLog.note`; "": none.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    at_ms: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which log, and where.

    Attributes:
        topic: by which a catalog knows the table.
        catalog: of Iceberg, as PyIceberg's own settings name it; None: one in the folder.
    """

    format: Format
    store: Folder | Bucket
    topic: str
    catalog: str | None = None


class TableLog(Protocol):
    """A table's versions, by numbers that only grow.

    Each is what a library of its format calls a commit: it counts as a whole or not at all. Raises
    StorageError for what the library says.

    A log is read when it is first asked, and once: all that it says is of one version, and a commit
    is the version after that one, or none. After a commit, and by `forget`, it is read again.

    Attributes:
        first_version: the number of the first version that has files.
        store: where the table is.
    """

    store: Folder | Bucket

    first_version: int

    def newest_version(self) -> int | None:
        """None where the folder has no such table yet."""

    def files(self) -> set[str]:
        """Of the newest version, from the table's folder on; elsewhere, as the log has them."""

    def commit(self, change: Change) -> None:
        """The next version, or the first one; by `commit` below, which says who was first."""

    def note(self) -> str | None:
        """The last note that a commit left; None where none did."""

    def is_begun(self) -> bool:
        """Whether somebody began a table there that has no version yet."""

    def forget(self) -> None:
        """Read the log again."""

    def settle(self) -> None:
        """Have the newest version, which is there, be durable, and remove older ones."""


def commit(log: TableLog, change: Change) -> None:
    """The version after the one that the log has told of.

    Raises ConfigError where somebody else made one meanwhile, whatever it failed by: what was to be
    in it may have been deleted.
    """
    before = log.newest_version()
    try:
        log.commit(change)
    except StorageError as e:
        log.forget()
        if log.newest_version() == before:
            raise
        raise changed_meanwhile(log.store) from e


def changed_meanwhile(store: Folder | Bucket) -> ConfigError:
    """What is said of it."""
    return ConfigError(f"--to {store}: somebody else changed the table meanwhile; run this again")


def refuse_names(options: LogOptions, letters: str) -> None:
    """Raise ConfigError for a folder whose path has a letter that a library takes for another."""
    if not set(letters).isdisjoint(str(options.store)):
        allowed = f"allowed for {options.format} is a path without any of {letters}"
        raise ConfigError(f"--to {options.store}: {allowed}")


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _HasStore(Protocol):
    @property
    def store(self) -> Folder | Bucket: ...


Log = TypeVar("Log", bound=_HasStore)


def said_of_the_table(
    method: Callable[Concatenate[Log, P], R],
) -> Callable[Concatenate[Log, P], R]:
    """A method of a log whose library's errors have no type in common: one line names the table."""

    @wraps(method)
    def called(log: Log, /, *args: P.args, **named: P.kwargs) -> R:
        try:
            return method(log, *args, **named)
        except LapseError:
            raise
        except Exception as e:
            raise StorageError(f"--to {log.store}: {type(e).__name__}: {said(e)}") from e

    return called


def said(error: BaseException) -> str:
    """The text of a library's error in one line: delta-rs has the cause below, in colours."""
    lines = _COLOURS.sub("", str(error)).splitlines()
    return ": ".join(line.strip(" \t↳") for line in lines if line.strip(" \t↳"))


def log_of(options: LogOptions) -> TableLog | None:
    """The table's log; None for plain Parquet. Raises MissingExtra: the libraries are extras."""
    with needed_for(f"--format {options.format}"):
        match options.format:
            case Format.DELTA:
                from lapse.spark.export.delta import DeltaLog  # noqa: PLC0415

                return DeltaLog(options)
            case Format.ICEBERG:
                from lapse.spark.export.iceberg import IcebergLog  # noqa: PLC0415

                return IcebergLog(options)
            case Format.PARQUET:
                return None
