"""A prefix of a bucket in an object store that speaks S3, through Arrow.

An object is there as a whole, or not at all; it is written anew, never changed. Arrow comes with an
extra, and is imported once a store is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from lapse.base.errors import ConfigError, StorageError
from lapse.base.extras import needed_for
from lapse.base.fs import Buffer

S3 = "s3"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is said of an object.

    Attributes:
        name: from the prefix on. mtime_s: some listings have parts of seconds, an object has not.
        version: which of the objects that had that name (its ETag); a listing does not say it.
    """

    name: str
    size: int
    mtime_s: int
    version: str = ""


class Bucket:
    """A prefix of a bucket, `s3://BUCKET/PREFIX`; names are from there on.

    Who we are, and where the store is, the environment says as for all tools of S3 (AWS_REGION,
    AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or the machine.
    Whatever the store refuses is a StorageError.
    """

    def __init__(self, uri: str) -> None:
        """Raises ConfigError where it names no bucket, or no prefix."""
        parts = urlsplit(uri)
        prefix = parts.path.strip("/")
        is_odd = parts.query or parts.fragment or "//" in prefix
        if parts.scheme != S3 or not parts.netloc or not prefix or is_odd:
            raise ConfigError(f"{uri}: allowed is a directory, or s3://BUCKET/PREFIX")
        self._root = f"{parts.netloc}/{prefix}"
        self.uri = f"{S3}://{self._root}"

    def __str__(self) -> str:
        return self.uri

    @cached_property
    def _arrow(self) -> Any:
        with needed_for(self.uri):
            import_module("pyarrow.fs")
            return import_module("pyarrow")

    @cached_property
    def _files(self) -> Any:
        return self._arrow.fs.S3FileSystem(**s3_options(os.environ))

    def source(self, name: str) -> Any:
        """What Arrow reads an object from."""
        with self._said(name):
            return self._files.open_input_file(f"{self._root}/{name}")

    def size(self, name: str) -> int:
        """Of an object that is there."""
        with self._said(name):
            return int(self._files.get_file_info(f"{self._root}/{name}").size)

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        with self._said(name):
            found = self._files.get_file_info(f"{self._root}/{name}")
        return bool(found.is_file)

    def info(self, name: str) -> ObjectInfo | None:
        """What the store says of it; None where it is not there."""
        with self._said(name):
            try:
                with self._files.open_input_file(f"{self._root}/{name}") as source:
                    version, size = str(source.metadata().get("ETag")), int(source.size())
                found = self._files.get_file_info(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
        return replace(self._info_of(found), size=size, version=version) if found.is_file else None

    def blocks(self, name: str, block_bytes: int) -> Iterator[bytes]:
        """Its bytes; of several versions, where it is written anew meanwhile."""
        with self._said(name), self._files.open_input_file(f"{self._root}/{name}") as source:
            while block := source.read(block_bytes):
                yield block

    def delete(self, name: str) -> None:
        """An object, if it is there."""
        if self.has(name):
            with self._said(name):
                self._files.delete_file(f"{self._root}/{name}")

    def sync(self, names: Iterable[str]) -> None:
        """What is written is durable."""

    def create(self, name: str) -> ObjectOut:
        """A new object; it is there once it is closed."""
        with self._said(name):
            return ObjectOut(self, name, self._files.open_output_stream(f"{self._root}/{name}"))

    def put(self, name: str, data: bytes) -> None:
        """A whole object."""
        out = self.create(name)
        out.write(data)
        out.close()

    def names(self, folder: str = "") -> set[str]:
        """All there is, or all below a folder."""
        return {info.name for info in self.objects(folder)}

    def objects(self, folder: str = "") -> list[ObjectInfo]:
        """The same, with what the listing says of each."""
        where = f"{self._root}/{folder}".rstrip("/")
        with self._said(folder):
            found = self._files.get_file_info(
                self._arrow.fs.FileSelector(where, recursive=True, allow_not_found=True)
            )
        return [self._info_of(one) for one in found if one.is_file]

    def _info_of(self, found: Any) -> ObjectInfo:
        return ObjectInfo(
            found.path[len(self._root) + 1 :], int(found.size), found.mtime_ns // 1_000_000_000
        )

    @contextmanager
    def _said(self, name: str) -> Iterator[None]:
        """Raise StorageError for what Arrow says: full, read-only, not let in, not there."""
        try:
            yield
        except (OSError, self._arrow.ArrowException) as e:
            said = next(iter(str(e).strip().splitlines()), type(e).__name__)
            raise StorageError(f"{self.uri}/{name}: {said}") from e


@dataclass(frozen=True, slots=True)
class ObjectOut:
    """A new object, forwards only."""

    bucket: Bucket
    name: str
    stream: Any

    def write(self, data: Buffer, /) -> None:
        """Some of it."""
        with self.bucket._said(self.name):
            self.stream.write(data)

    def fsync(self) -> None:
        """An object is there as a whole, once it is closed."""

    def close(self) -> None:
        """All of it is there, and durable."""
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


def is_bucket(place: str) -> bool:
    """Whether it is a URI, and not a path."""
    return "://" in place
