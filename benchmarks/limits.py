"""What a cleaner cannot do without, measured alone on the very bytes: how near ours comes to it.

- Plain logs: the CRC of all batches in, a copy of what stays, the CRC of that. Once in memory, as
  the design's target has it, and once with the copy written to a file, as a cleaner must.
- Compressed logs: inflating all records once and deflating those that stay, with the libraries we
  use and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import CODEC_MASK, HEADER_SIZE
from lapse.records.batch import headers_of, scan_batches
from lapse.records.compression import deflate, inflate

_WINDOW = 1 << 20
_PAYLOADS_AT_ONCE = 64


def copy_and_checksum(before: Path, after: Path, runs: int) -> dict[str, float]:
    """Seconds of CPU; `before` and `after` a round are log directories."""

    def in_memory() -> None:
        _checksum(before)
        for window in _windows(after):
            crc32c(window, 0, len(window))

    def to_file() -> None:
        _checksum(before)
        path = after / "copy"
        with path.open("wb", buffering=0) as f:
            for window in _windows(after):
                crc32c(window, 0, len(window))
                f.write(window.data)
            os.fsync(f.fileno())
        path.unlink()

    return {
        "in_memory_cpu_seconds": _best(in_memory, runs),
        "to_file_cpu_seconds": _best(to_file, runs),
    }


def codec_only(before: Path, after: Path, runs: int) -> dict[str, float]:
    """Seconds of CPU for inflating all of `before` and deflating all of `after`."""
    inflating = min(sum(_inflating(before)) for _ in range(runs))
    deflating = min(sum(_deflating(after)) for _ in range(runs))
    return {
        "inflate_cpu_seconds": round(inflating, 4),
        "deflate_cpu_seconds": round(deflating, 4),
        "cpu_seconds": round(inflating + deflating, 4),
    }


def _best(work: Callable[[], Any], runs: int) -> float:
    seconds = []
    for _ in range(runs + 1):  # the first loads the kernel
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return round(min(seconds), 4)


def _segments(directory: Path) -> Iterator[NDArray[np.uint8]]:
    """Mapped anew each time, so that reading the page cache is counted."""
    for path in sorted(directory.rglob("*.log")):
        if path.stat().st_size:
            yield np.memmap(path, np.uint8, "r").view(np.ndarray)


def _checksum(directory: Path) -> None:
    for segment in _segments(directory):
        crc32c(segment, 0, len(segment))


def _windows(directory: Path) -> Iterator[NDArray[np.uint8]]:
    """The bytes of all segments, copied piece by piece."""
    target = np.empty(_WINDOW, np.uint8)
    for segment in _segments(directory):
        for start in range(0, len(segment), _WINDOW):
            piece = segment[start : start + _WINDOW]
            np.copyto(target[: len(piece)], piece)
            yield target[: len(piece)]


Payloads = list[tuple[int, NDArray[np.uint8]]]


def _payloads(directory: Path) -> Iterator[Payloads]:
    """Codec and compressed records of each batch, some batches at a time."""
    for segment in _segments(directory):
        rows = headers_of(scan_batches(segment, "", check_crc=False))
        for n in range(0, len(rows), _PAYLOADS_AT_ONCE):
            yield [
                (b.attributes & CODEC_MASK, segment[b.position + HEADER_SIZE : b.position + b.size])
                for b in rows[n : n + _PAYLOADS_AT_ONCE]
            ]


def _inflating(directory: Path) -> Iterator[float]:
    for payloads in _payloads(directory):
        started = time.process_time()
        for codec, payload in payloads:
            inflate(codec, payload)
        yield time.process_time() - started


def _deflating(directory: Path) -> Iterator[float]:
    for payloads in _payloads(directory):
        plain = [(codec, inflate(codec, payload)) for codec, payload in payloads]
        started = time.process_time()
        for codec, records in plain:
            deflate(codec, records)
        yield time.process_time() - started
