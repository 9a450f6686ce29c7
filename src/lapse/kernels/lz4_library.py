"""The C functions of the lz4 wheel, called from kernels without Python in between.

A frame of Kafka's is a few KB: what Python does around each call of the library costs more than
what the library does. Compiled code, which is kept on disk, calls a function by a name of ours, so
the name must be known to LLVM before such code is loaded: importing this module makes it so. Where
the wheel hides its functions, `IS_THERE` is False, and no kernel that calls them may be.

A pointer is an array and an index, as in `machine`. The functions stay within the sizes that they
are given, whatever the bytes are; those the calling kernel has checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import lz4.frame
from llvmlite import ir
from numba import types
from numba.core import cgutils

from lapse.kernels.jit import intrinsic
from lapse.kernels.machine import I8, I32, I64, address

_DECOMPRESS = "LZ4_decompress_safe"
_COMPRESS = "LZ4_compress_fast_extState_fastReset"
_DEFAULT_LEVEL = 1  # of LZ4's "acceleration"
_PREFIX = "lapse_"
_i64 = types.int64


def _register() -> int:
    """Bytes of the state that compressing needs; 0 where a function is not to be had."""
    try:
        library = ctypes.CDLL(lz4.frame._frame.__file__)
        for name in (_DECOMPRESS, _COMPRESS):
            at = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            llvm.add_symbol(_PREFIX + name, at)
        return int(library.LZ4_sizeofState())
    except (AttributeError, OSError):
        return 0


STATE_BYTES = _register()
IS_THERE = STATE_BYTES > 0


def _pointer(context: Any, builder: Any, of_type: Any, array: Any, index: Any) -> Any:
    return builder.bitcast(address(context, builder, of_type, array, index), I8.as_pointer())


def _call(builder: Any, name: str, pointers: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """All of these functions take pointers first, and return an int."""
    values = [*pointers, *(builder.trunc(number, I32) for number in numbers)]
    declared = ir.FunctionType(I32, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, declared, _PREFIX + name)
    return builder.sext(builder.call(function, values), I64)


@intrinsic
def decompress(
    typing_context: Any, source: Any, at: Any, target: Any, to: Any, size: Any, room: Any
) -> Any:
    """One block into at most `room` bytes: how many they are, or less than 0 where it is broken."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = _pointer(context, builder, signature.args[0], args[0], args[1])
        into = _pointer(context, builder, signature.args[2], args[2], args[3])
        return _call(builder, _DECOMPRESS, [of, into], args[4:])

    return _i64(source, _i64, target, _i64, _i64, _i64), generate


@intrinsic
def compress(
    typing_context: Any, state: Any, source: Any, at: Any, target: Any, to: Any, size: Any,
    room: Any,
) -> Any:  # fmt: skip
    """One block, at the default level, into at most `room` bytes; 0 where these do not do.

    `state` has STATE_BYTES bytes, which are 0 before the first call.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kept = _pointer(context, builder, signature.args[0], args[0], I64(0))
        of = _pointer(context, builder, signature.args[1], args[1], args[2])
        into = _pointer(context, builder, signature.args[3], args[3], args[4])
        numbers = [*args[5:], I64(_DEFAULT_LEVEL)]
        return _call(builder, _COMPRESS, [kept, of, into], numbers)

    return _i64(state, source, _i64, target, _i64, _i64, _i64), generate
