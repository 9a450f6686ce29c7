"""A file system that discards all writes: for rewriting only to see the result (dry runs)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.base.secret import Secret


class DiscardedFile:
    """A file whose bytes are discarded; only its size is kept."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0

    def fileno(self) -> int:
        return -1

    def reserve(self, size: int) -> None: ...

    def write(self, *buffers: Buffer) -> None:
        self.size += sum(memoryview(buffer).nbytes for buffer in buffers)

    def copy_from(self, source_fd: int, position: int, length: int) -> None:  # noqa: ARG002
        self.size += length

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class DiscardFs(RealFs):
    """A file system that accepts an attempt's files and keeps nothing."""

    def open_append(self, path: Path) -> AppendFile:
        return DiscardedFile(path)

    def write_file(self, path: Path, data: Buffer | Secret) -> None: ...

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None: ...

    def sync_all(self, paths: Sequence[Path]) -> None: ...
