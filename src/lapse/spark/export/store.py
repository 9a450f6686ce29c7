"""Where a table's files are: a folder, or a prefix in an object store that speaks S3.

Names are from the table on. In a folder files are written elsewhere first and moved (`table`). An
object store knows no move: there a file has its last name from the beginning, and whether it counts
the table's log alone says (`bucket_table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lapse.base.bucket import Bucket, is_bucket
from lapse.base.errors import ConfigError
from lapse.base.fs import Buffer, Fs


class Out(Protocol):
    """A new file, forwards only."""

    def write(self, data: Buffer, /) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class Store(Protocol):
    """The files of one table.

    Attributes:
        uri: by which a table's library knows it.
    """

    @property
    def uri(self) -> str: ...

    def source(self, name: str) -> Any:
        """What Arrow reads a file from. Raises StorageError."""

    def size(self, name: str) -> int:
        """Of a file that is there. Raises StorageError."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def delete(self, name: str) -> None:
        """A file, if it is there."""

    def sync(self, names: Iterable[str]) -> None:
        """Have files and folders be durable."""


@dataclass(frozen=True, slots=True)
class Folder:
    """`Store`: a folder that driver and executors see."""

    path: Path
    fs: Fs

    def __str__(self) -> str:
        return str(self.path)

    @property
    def uri(self) -> str:
        return str(self.path)

    def source(self, name: str) -> Path:
        return self.path / name

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def delete(self, name: str) -> None:
        self.fs.unlink(self.path / name)

    def sync(self, names: Iterable[str]) -> None:
        self.fs.sync_all([self.path / name for name in names])

    def create(self, name: str) -> Out:
        """A new file; the folder is made for it."""
        self.fs.make_dir(self.path)
        return self.fs.open_append(self.path / name)


def store_at(place: str, fs: Callable[[], Fs]) -> Folder | Bucket:
    """By what `--to` says, which is absolute by now. Raises ConfigError."""
    if not is_bucket(place):
        return Folder(Path(place), fs())
    try:
        return Bucket(place)
    except ConfigError as e:
        raise ConfigError(f"--to {e}") from e
