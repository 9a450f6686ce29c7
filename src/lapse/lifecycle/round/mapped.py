"""Segment files as memory-mapped arrays for a round, safe if a file shrinks meanwhile.

A round reads its segments through memory maps: they are sealed, and copying them first would cost a
tenth to a half more. But touching a map beyond the end of its file raises SIGBUS, which ends the
process, and another process may truncate a segment file. So while a map of ours is open, a signal
handler replaces the missing page by zeros and counts it; the reader calls `check` before it relies
on what it read, and gets CorruptData.

The handler runs within the instruction that touched the page, so it cannot be Python: it is a few
lines of LLVM that search a table of our maps, call `mmap`, and restore the previous handler for any
other address. On systems other than Linux a file is read into memory instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData

SLOTS = 4096  # maps that may be open at once; beyond that a file is read into memory
_PAGE = mmap.PAGESIZE
_READ, _REPLACE = 1, 0x32  # PROT_READ; MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS
_ADDRESS_IN_SIGINFO = 16
_SA_SIGINFO, _SA_ONSTACK = 0x4, 0x08000000
_SUPPORTED = sys.platform == "linux" and sys.maxsize > 1 << 32

# @table: SLOTS times (first address, end address, pages replaced); @before: the struct sigaction
# that was in force. An address in none of our maps gets the old action back: returning from the
# handler repeats the instruction, and the fault then goes where it would have gone.
_HANDLER = f"""
@table = global [{3 * SLOTS} x i64] zeroinitializer
@before = global [32 x i64] zeroinitializer

declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, ptr, ptr)

define void @on_bus_error(i32 %signal, ptr %info, ptr %context) {{
entry:
  %at = getelementptr i8, ptr %info, i64 {_ADDRESS_IN_SIGINFO}
  %address = load i64, ptr %at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %miss ]
  %first_at = getelementptr i64, ptr @table, i64 %i
  %first = load i64, ptr %first_at
  %end_at = getelementptr i64, ptr %first_at, i64 1
  %end = load i64, ptr %end_at
  %above = icmp uge i64 %address, %first
  %below = icmp ult i64 %address, %end
  %inside = and i1 %above, %below
  br i1 %inside, label %ours, label %miss
miss:
  %next = add i64 %i, 3
  %more = icmp ult i64 %next, {3 * SLOTS}
  br i1 %more, label %loop, label %others
ours:
  %start = and i64 %address, -{_PAGE}
  %page = inttoptr i64 %start to ptr
  %new = call ptr @mmap(ptr %page, i64 {_PAGE}, i32 {_READ}, i32 {_REPLACE}, i32 -1, i64 0)
  %hits_at = getelementptr i64, ptr %first_at, i64 2
  %hits = load i64, ptr %hits_at
  %hit = add i64 %hits, 1
  store i64 %hit, ptr %hits_at
  ret void
others:
  %restored = call i32 @sigaction(i32 %signal, ptr @before, ptr null)
  ret void
}}
"""


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries on 64-bit machines."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Guard:
    """The handler and its table of maps; one per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._engine: Any = None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def enter(self, first: int, size: int) -> int | None:
        """Watch a map; its slot, or None where all are taken."""
        with self._lock:
            if self._engine is None:
                self._compile()
            free = np.flatnonzero(self._table[:, 1] == 0)
            if not len(free):
                return None
            slot = int(free[0])
            self._table[slot] = first, first + size, 0
            self._open += 1
            if self._open == 1:
                action = _Action(handler=self._handler, flags=_SA_SIGINFO | _SA_ONSTACK)
                self._libc.sigaction(
                    signal.SIGBUS, ctypes.byref(action), ctypes.byref(self._before)
                )
            return slot

    def hits(self, slot: int) -> int:
        """Pages of the map that were beyond the file's end when they were touched."""
        return int(self._table[slot, 2])

    def leave(self, slot: int) -> None:
        """Stop watching a map; called before it is closed."""
        with self._lock:
            self._table[slot] = 0
            self._open -= 1
            if self._open == 0:
                self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._before), None)

    def _compile(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_HANDLER), machine)
        engine.finalize_object()
        table = ctypes.c_int64 * (3 * SLOTS)
        address = engine.get_global_value_address("table")
        self._table = np.ctypeslib.as_array(table.from_address(address)).reshape(SLOTS, 3)
        self._before = _Action.from_address(engine.get_global_value_address("before"))
        self._handler = engine.get_function_address("on_bus_error")
        self._engine = engine


_guard = _Guard() if _SUPPORTED else None


class MappedFile:
    """The first bytes of a file as an array that stays readable even if the file shrinks.

    Attributes:
        data: the bytes, read-only.
        fd: for copying file to file.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Raises CorruptData if the file is shorter."""
        self._path, self._size = path, size
        self._slot: int | None = None
        self._map: mmap.mmap | None = None
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._require(os.fstat(self.fd).st_size)
            self.data = self._load()
        except BaseException:
            os.close(self.fd)
            raise

    def _load(self) -> NDArray[np.uint8]:
        if not self._size:
            return np.frombuffer(b"", np.uint8)
        if _guard is not None:
            pages = mmap.mmap(self.fd, self._size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            data = np.frombuffer(pages, np.uint8)
            self._slot = _guard.enter(data.ctypes.data, self._size)
            if self._slot is not None:
                self._map = pages
                return data
        data = np.fromfile(self._path, np.uint8, self._size)
        self._require(len(data))
        data.flags.writeable = False
        return data

    def check(self) -> None:
        """Raises CorruptData if something that was read may not have been the file's.

        Reading zeros in the page with the file's end raises no signal: the file size shows it.
        """
        if self._map is None:  # read at once, and whole
            return
        size = os.fstat(self.fd).st_size
        if self._slot is not None and _guard is not None and _guard.hits(self._slot):
            size = min(size, self._size - 1)
        self._require(size)

    def forget(self) -> None:
        """Drop the map's pages from the memory that counts as this process's own.

        They stay in the operating system's cache, and the array stays readable.
        """
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def _require(self, size: int) -> None:
        if size < self._size:
            raise CorruptData(
                str(self._path), size, f"the segment is shorter than planned ({self._size} bytes)"
            )

    def close(self) -> None:
        """Close the map and the file; the array must not be used any more."""
        if self._slot is not None and _guard is not None:
            _guard.leave(self._slot)
            self._slot = self._map = None
        os.close(self.fd)
