"""A payload that says little and becomes much costs no more than it may, and ends in a typed error.

Each case runs in a process of its own, whose greatest memory is compared with that of one that
inflates something harmless.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lapse.records.compression import INFLATED_BYTES_MAX, bytes_allowed
from tests.support.bombs import KB, MB, bombs

SLACK = 24 * MB  # buffers of the libraries, and the noise of two processes

NAMES = [
    "gzip of 200 MB", "gzip of many members", "gzip, 1 KB", "lz4 as dense as can be",
    "lz4 that claims 2^60 bytes",
    "snappy that claims 4 GB", "snappy that claims 1 GB less one", "snappy as dense as can be",
    "xerial blocks", "xerial blocks that claim", "xerial of empty blocks", "xerial upon xerial",
    "zstd of 200 MB", "zstd, 1 KB of runs", "zstd, 32 KB of runs", "zstd of runs too long",
    "zstd of many frames", "zstd of many empty frames", "zstd with a window of 2 GB",
    "zstd with a window of 128 MB", "zstd that claims 2^50 bytes",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file a bomb."""
    folder = tmp_path_factory.mktemp("bombs")
    made = bombs()
    assert list(made) == NAMES
    for name, (codec, payload, must_refuse) in made.items():
        (folder / name).write_bytes(bytes([codec, must_refuse]) + payload)
    return folder


_INFLATE = """
    import resource, sys, time
    import numpy as np
    from lapse.records.compression import BadCompression, inflate

    data = np.fromfile(sys.argv[1], np.uint8)
    for codec in (1, 2, 3, 4):  # what the libraries take at their first use
        try:
            inflate(codec, data[:0])
        except BadCompression:
            pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        size = len(inflate(int(data[0]), data[2:]))
        assert not data[1], f"let through {size} bytes"
    except BadCompression as e:
        print(e, file=sys.stderr)
        assert data[1], f"refused: {e}"
        size = 0
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    seconds = time.process_time()
    print(size, more, seconds)
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_takes_no_more_than_is_allowed(name: str, folder: Path) -> None:
    path = folder / name
    payload_bytes = path.stat().st_size - 2
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_INFLATE), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    size, rss_more_kb, cpu_seconds = map(float, done.stdout.split())
    allowed = bytes_allowed(payload_bytes)
    assert size <= allowed
    # A decoder that grows its output holds it twice at its end.
    assert rss_more_kb * KB <= 2.2 * allowed + payload_bytes + SLACK
    assert cpu_seconds < 20  # a few at most; quadratic work would be minutes


def test_a_kilobyte_never_becomes_a_gigabyte() -> None:
    assert bytes_allowed(KB) < 65 * MB
    assert bytes_allowed(1 << 40) == INFLATED_BYTES_MAX
