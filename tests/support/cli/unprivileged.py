"""Being nobody special for a while: file permissions then hold for tests that run as root, too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OVERRIDES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def unprivileged(*closed: Path) -> Iterator[None]:
    """Nobody may read these files or directories meanwhile, not this thread as root either."""
    modes = {path: path.stat().st_mode for path in closed}
    for path in closed:
        path.chmod(0)
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    is_root = os.geteuid() == 0
    if is_root:
        assert libc.capget(ctypes.byref(header), sets) == 0
        had = sets[0].effective
        sets[0].effective = had & ~_OVERRIDES
        assert libc.capset(ctypes.byref(header), sets) == 0
    try:
        yield
    finally:
        if is_root:
            sets[0].effective = had
            assert libc.capset(ctypes.byref(header), sets) == 0
        for path, mode in modes.items():
            path.chmod(mode)
