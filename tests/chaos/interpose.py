"""Failing disks, wrong clocks and named moments for real processes, by LD_PRELOAD (interpose.c).

It needs no root and reaches whatever a process does below one folder, SQLite's files included. The
library is compiled where the run is; without a C compiler, or on another system than Linux, these
faults are left out, and the run says so.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from enum import IntFlag
from pathlib import Path
from typing import Self

import pytest

SOURCE = Path(__file__).with_name("interpose.c")
CONTROL = "LAPSE_CHAOS_CONTROL"
_LAYOUT = struct.Struct("<qiIIIIIiIQiI64s512s")  # struct control of interpose.c
_NAMES = (
    "wall_offset_ns", "disk_errno", "disk_ops", "disk_per_mille", "disk_torn", "delay_us",
    "moment_ops", "moment_countdown", "moment_before", "disk_hits", "moment_pid", "seed",
    "moment_end", "prefix",
)  # fmt: skip
_FORMATS = "qiIIIIIiIQiI"
_AT = {name: struct.calcsize("<" + _FORMATS[:n]) for n, name in enumerate(_NAMES[:12])}
_AT["moment_end"] = struct.calcsize("<" + _FORMATS)
_TEXT_BYTES = 64


class Op(IntFlag):
    """Calls of the system, as interpose.c numbers them."""

    WRITE = 1
    SYNC = 2
    RENAME = 4
    CREATE = 8
    UNLINK = 16
    READ = 32


def compiler() -> str | None:
    """The C compiler, where this can work at all."""
    return shutil.which("cc") or shutil.which("gcc") if sys.platform == "linux" else None


needs_compiler = pytest.mark.skipif(compiler() is None, reason="interposing needs a C compiler")


class Interposer:
    """The library and its control file; what it says is in force at once, for all processes.

    Args:
        folder: for the library and the control file.
        prefix: only what lies below is touched.
    """

    def __init__(self, folder: Path, prefix: Path, seed: int) -> None:
        cc = compiler()
        assert cc is not None, "no C compiler"
        self._library = folder / "interpose.so"
        command = [cc, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE)]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
        self._path = folder / "control"
        first = [0] * 11 + [seed & 0x7FFFFFFF | 1]
        self._path.write_bytes(_LAYOUT.pack(*first, b"", str(prefix).encode() + b"/"))
        self._file = self._path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), _LAYOUT.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        self._file.close()

    @property
    def environment(self) -> Mapping[str, str]:
        """For the processes that are to be reached."""
        return {"LD_PRELOAD": str(self._library), CONTROL: str(self._path)}

    def set_clock(self, ahead_ms: int) -> None:
        """Wall clocks are ahead by so much, behind if negative; 0 puts them right."""
        self._set("wall_offset_ns", ahead_ms * 1_000_000)

    def fail_disk(self, code: int, ops: Op, *, per_mille: int = 1000, torn: bool = False) -> None:
        """So many of these calls fail with this errno; torn writes leave their first half."""
        self._set("disk_ops", int(ops))
        self._set("disk_per_mille", per_mille)
        self._set("disk_torn", int(torn))
        self._set("disk_errno", code)

    def fill_disk(self) -> None:
        """What a full disk says to whoever wants more of it."""
        self.fail_disk(errno.ENOSPC, Op.WRITE | Op.CREATE)

    def slow_disk(self, delay_ms: float) -> None:
        """Writes and syncs take so much longer."""
        self._set("delay_us", int(delay_ms * 1000))

    def mend_disk(self) -> None:
        """Nothing fails and nothing is slow."""
        self._set("disk_errno", 0)
        self._set("delay_us", 0)

    @property
    def disk_hits(self) -> int:
        """Calls that have failed so far."""
        return self._get("disk_hits")

    def wait_for_moment(self, ops: Op, path_end: str, nth: int = 1, *, before: bool) -> None:
        """Who makes the n-th such call on a path that ends so is stopped before or after it."""
        text = path_end.encode()
        assert len(text) < _TEXT_BYTES, path_end
        self.forget_moment()
        self._map[_AT["moment_end"] : _AT["moment_end"] + _TEXT_BYTES] = text.ljust(
            _TEXT_BYTES, b"\0"
        )
        self._set("moment_countdown", nth)
        self._set("moment_before", int(before))
        self._set("moment_ops", int(ops))

    @property
    def stopped_pid(self) -> int | None:
        """Who has come to the moment and stands still."""
        return self._get("moment_pid") or None

    def forget_moment(self) -> None:
        """Nobody is stopped any more; who stands still is the caller's to set going."""
        self._set("moment_ops", 0)
        self._set("moment_pid", 0)

    def _set(self, name: str, value: int) -> None:
        struct.pack_into("<" + _FORMATS[_NAMES.index(name)], self._map, _AT[name], value)

    def _get(self, name: str) -> int:
        return int(struct.unpack_from("<" + _FORMATS[_NAMES.index(name)], self._map, _AT[name])[0])
