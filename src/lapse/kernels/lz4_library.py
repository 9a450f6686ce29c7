"""Blocks of LZ4, by the C functions of the lz4 wheel; not to be had where `IS_THERE` is False."""

from __future__ import annotations

from typing import Any

import lz4.frame
from numba import types

from lapse.kernels.c_functions import call, pointer, register
from lapse.kernels.jit import intrinsic
from lapse.kernels.machine import I32, I64

_DECOMPRESS = "LZ4_decompress_safe"
_COMPRESS = "LZ4_compress_fast_extState_fastReset"
_DEFAULT_LEVEL = 1  # of LZ4's "acceleration"
_i64 = types.int64

_library = register(lz4.frame._frame.__file__, (_DECOMPRESS, _COMPRESS, "LZ4_sizeofState"))
IS_THERE = _library is not None
STATE_BYTES = int(_library.LZ4_sizeofState()) if _library is not None else 0


def _small(builder: Any, *numbers: Any) -> list[Any]:
    return [builder.trunc(number, I32) for number in numbers]


@intrinsic
def decompress(
    typing_context: Any, source: Any, at: Any, target: Any, to: Any, size: Any, room: Any
) -> Any:
    """One block into at most `room` bytes: how many they are, or less than 0 where it is broken."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = pointer(context, builder, signature.args[0], args[0], args[1])
        into = pointer(context, builder, signature.args[2], args[2], args[3])
        values = [of, into, *_small(builder, args[4], args[5])]
        return builder.sext(call(builder, _DECOMPRESS, values, I32), I64)

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
        kept = pointer(context, builder, signature.args[0], args[0], I64(0))
        of = pointer(context, builder, signature.args[1], args[1], args[2])
        into = pointer(context, builder, signature.args[3], args[3], args[4])
        numbers = _small(builder, args[5], args[6], I64(_DEFAULT_LEVEL))
        return builder.sext(call(builder, _COMPRESS, [kept, of, into, *numbers], I32), I64)

    return _i64(state, source, _i64, target, _i64, _i64, _i64), generate
