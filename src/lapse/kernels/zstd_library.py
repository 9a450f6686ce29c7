"""Frames of zstd, by the C functions that come with Python's own module for it.

That is `compression.zstd` from Python 3.14 on, and `backports.zstd` before; not to be had where
`IS_THERE` is False. A context is made once and used again: that is most of what many small frames
cost otherwise.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from numba import types

from lapse.kernels.c_functions import call, context_of_thread, register, spans
from lapse.kernels.jit import intrinsic
from lapse.kernels.machine import I32, I64

_DECOMPRESS, _COMPRESS = "ZSTD_decompressDCtx", "ZSTD_compressCCtx"
_MAKE_DECOMPRESSING, _MAKE_COMPRESSING = "ZSTD_createDCtx", "ZSTD_createCCtx"
_i64 = types.int64


def _path() -> str | None:
    name = "_zstd" if sys.version_info >= (3, 14) else "backports.zstd._zstd"
    try:
        return getattr(import_module(name), "__file__", None)
    except ImportError:
        return None


_library = register(_path(), (_DECOMPRESS, _COMPRESS, _MAKE_DECOMPRESSING, _MAKE_COMPRESSING))
IS_THERE = _library is not None


def decompressing() -> int:
    """The context of this thread to decompress with; 0 where there is none."""
    return context_of_thread(_library, _MAKE_DECOMPRESSING)


def compressing() -> int:
    """The context of this thread to compress with; 0 where there is none."""
    return context_of_thread(_library, _MAKE_COMPRESSING)


@intrinsic
def decompress(
    typing_context: Any, used: Any, source: Any, at: Any, size: Any, target: Any, to: Any,
    room: Any,
) -> Any:  # fmt: skip
    """All frames of a payload into at most `room` bytes; less than 0 where that cannot be."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        by, of, size, into, room = spans(context, builder, signature, args)
        return call(builder, _DECOMPRESS, [by, into, room, of, size], I64)

    return _i64(_i64, source, _i64, _i64, target, _i64, _i64), generate


@intrinsic
def compress(
    typing_context: Any, used: Any, source: Any, at: Any, size: Any, target: Any, to: Any,
    room: Any, level: Any,
) -> Any:  # fmt: skip
    """One frame in at most `room` bytes; less than 0 where that cannot be."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        by, of, size, into, room = spans(context, builder, signature, args)
        values = [by, into, room, of, size, builder.trunc(args[7], I32)]
        return call(builder, _COMPRESS, values, I64)

    return _i64(_i64, source, _i64, _i64, target, _i64, _i64, _i64), generate
