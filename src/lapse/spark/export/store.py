"""Where a table's files are: a folder, or a prefix in an object store that speaks S3.

Names are from the table on. In a folder files are written elsewhere first and moved (`table`). An
object store knows no move: there a file has its last name from the beginning, and whether it counts
the table's log alone says (`bucket_table`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs as arrow_fs

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import Buffer, Fs

S3 = "s3"


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


class Bucket:
    """`Store`: a prefix of a bucket, `s3://BUCKET/PREFIX`.

    Who we are, and where the store is, the environment says as for all tools of S3 (AWS_REGION,
    AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or the machine.
    """

    def __init__(self, uri: str) -> None:
        """Raises ConfigError where it names no bucket, or no prefix."""
        parts = urlsplit(uri)
        prefix = parts.path.strip("/")
        is_odd = parts.query or parts.fragment or "//" in prefix
        if parts.scheme != S3 or not parts.netloc or not prefix or is_odd:
            raise ConfigError(f"--to {uri}: allowed is a directory, or s3://BUCKET/PREFIX")
        self._root = f"{parts.netloc}/{prefix}"
        self.uri = f"{S3}://{self._root}"

    def __str__(self) -> str:
        return self.uri

    @cached_property
    def _files(self) -> arrow_fs.FileSystem:
        return arrow_fs.S3FileSystem(**s3_options(os.environ))

    def source(self, name: str) -> pa.NativeFile:
        with self._said(name):
            return self._files.open_input_file(f"{self._root}/{name}")

    def size(self, name: str) -> int:
        with self._said(name):
            return int(self._files.get_file_info(f"{self._root}/{name}").size)

    def has(self, name: str) -> bool:
        with self._said(name):
            found = self._files.get_file_info(f"{self._root}/{name}")
        return bool(found.type == arrow_fs.FileType.File)

    def delete(self, name: str) -> None:
        if self.has(name):
            with self._said(name):
                self._files.delete_file(f"{self._root}/{name}")

    def sync(self, names: Iterable[str]) -> None:
        """What is written is durable."""

    def create(self, name: str) -> Out:
        """A new object; it is there once it is closed."""
        with self._said(name):
            return _Object(self, name, self._files.open_output_stream(f"{self._root}/{name}"))

    def put(self, name: str, data: bytes) -> None:
        """A whole object."""
        out = self.create(name)
        out.write(data)
        out.close()

    def names(self, folder: str = "") -> set[str]:
        """All there is, or all below a folder."""
        where = f"{self._root}/{folder}".rstrip("/")
        with self._said(folder):
            found = self._files.get_file_info(
                arrow_fs.FileSelector(where, recursive=True, allow_not_found=True)
            )
        begin = len(self._root) + 1
        return {info.path[begin:] for info in found if info.type == arrow_fs.FileType.File}

    @contextmanager
    def _said(self, name: str) -> Iterator[None]:
        """Raise StorageError for what Arrow says: full, read-only, not let in, not there."""
        try:
            yield
        except (OSError, pa.ArrowException) as e:
            said = next(iter(str(e).strip().splitlines()), type(e).__name__)
            raise StorageError(f"{self.uri}/{name}: {said}") from e


@dataclass(frozen=True, slots=True)
class _Object:
    bucket: Bucket
    name: str
    stream: pa.NativeFile

    def write(self, data: Buffer, /) -> None:
        with self.bucket._said(self.name):
            self.stream.write(data)

    def fsync(self) -> None:
        """An object is there as a whole, once it is closed."""

    def close(self) -> None:
        with self.bucket._said(self.name):
            self.stream.close()


def s3_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Of Arrow's filesystem; who we are it finds out itself. Raises ConfigError."""
    name = "AWS_ENDPOINT_URL_S3" if environment.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    endpoint = environment.get(name)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    found: dict[str, Any] = {}
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ConfigError(
                f"{name}={endpoint}: allowed is http://HOST:PORT or https://HOST:PORT"
            )
        found |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        region = region or "us-east-1"  # of another store, which has none
    return found | ({"region": region} if region else {})


def store_at(place: str, fs: Callable[[], Fs]) -> Folder | Bucket:
    """By what `--to` says, which is absolute by now."""
    return Bucket(place) if is_bucket(place) else Folder(Path(place), fs())


def is_bucket(place: str) -> bool:
    """Whether it is a URI, and not a path."""
    return "://" in place
