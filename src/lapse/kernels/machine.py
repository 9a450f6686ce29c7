"""What Python cannot say and a CPU does in one instruction: loads, copies, prefetch, CRC.

Each takes an array and an index and checks nothing: the calling kernel has checked the range.
Loads and stores are unaligned. `be` is the network's byte order.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, intrinsic

I8, I32, I64, I128 = (ir.IntType(n) for n in (8, 32, 64, 128))
CACHE_LINE = 64


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return cgutils.pointer_add(
        builder, data, builder.mul(index, index.type(array_type.dtype.bitwidth // 8))
    )


def _load(width: int, result: Any, *, swap: bool) -> Any:
    def typed(typing_context: Any, buf: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int_type = ir.IntType(width)
            pointer = address(context, builder, signature.args[0], args[0], args[1])
            pointer = builder.bitcast(pointer, int_type.as_pointer())
            value = builder.load(pointer, align=1, typ=int_type)
            if swap:
                value = builder.bswap(value)
            if result.bitwidth > width:
                value = builder.sext(value, ir.IntType(result.bitwidth))
            return value

        return result(buf, types.int64), generate

    return intrinsic(typed)


def _store(width: int, *, swap: bool) -> Any:
    def typed(typing_context: Any, buf: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int_type = ir.IntType(width)
            pointer = address(context, builder, signature.args[0], args[0], args[1])
            pointer = builder.bitcast(pointer, int_type.as_pointer())
            narrow = builder.trunc(args[2], int_type) if width < 64 else args[2]
            builder.store(builder.bswap(narrow) if swap else narrow, pointer, align=1)
            return context.get_dummy_value()

        return types.void(buf, types.int64, types.int64), generate

    return intrinsic(typed)


load_u64 = _load(64, types.uint64, swap=False)
load_i64_be = _load(64, types.int64, swap=True)
load_i32_be = _load(32, types.int64, swap=True)
load_i16_be = _load(16, types.int64, swap=True)
store_i64_be = _store(64, swap=True)
store_i32_be = _store(32, swap=True)
store_i16_be = _store(16, swap=True)


@intrinsic
def copy_bytes(
    typing_context: Any, target: Any, at: Any, source: Any, start: Any, length: Any
) -> Any:
    """memmove(target[at:], source[start:start+length])."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = address(context, builder, signature.args[0], args[0], args[1])
        of = address(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memmove(builder, to, of, args[4], ir.Constant(I64, 1))
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(target, i64, source, i64, i64), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line that holds array[index] (flat), for reading and soon.

    An index beyond the array is harmless: nothing is read but into a cache.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = address(context, builder, signature.args[0], args[0], args[1])
        pointer = builder.bitcast(pointer, I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [pointer, I32(0), I32(3), I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@inlined
def prefetch_until(array: NDArray[np.uint8], at: int, end: int) -> int:
    """Prefetch array[at:end] line by line; returns where the next line begins."""
    while at < end:
        prefetch(array, at)
        at += CACHE_LINE
    return at


@intrinsic
def multiply_high(typing_context: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a 64×64-bit product: maps a hash evenly on 0..b-1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = builder.mul(builder.zext(args[0], I128), builder.zext(args[1], I128))
        return builder.trunc(builder.lshr(wide, I128(64)), I64)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Zeros below the lowest bit that is set; 64 if none is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _crc_instruction() -> str | None:
    """Name of the LLVM intrinsic that folds 8 bytes into a CRC-32C, or None without one."""
    if platform.machine() in {"x86_64", "AMD64"} and llvm.get_host_cpu_features().get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64"
    return None


CRC_INSTRUCTION = _crc_instruction()


@intrinsic
def crc_u64(typing_context: Any, crc: Any, word: Any) -> Any:
    """Fold 8 bytes into a CRC-32C by the CPU's instruction; only where CRC_INSTRUCTION says so."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64, I64])
        call = cgutils.get_or_insert_function(builder.module, kind, CRC_INSTRUCTION)
        return builder.call(call, args)

    return types.uint64(types.uint64, types.uint64), generate


def _crc_of_less(width: int) -> Any:
    """As `crc_u64`, for fewer bits at buf[index]."""

    def typed(typing_context: Any, crc: Any, buf: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int_type = ir.IntType(width)
            pointer = address(context, builder, signature.args[1], args[1], args[2])
            pointer = builder.bitcast(pointer, int_type.as_pointer())
            word = builder.load(pointer, align=1, typ=int_type)
            kind = ir.FunctionType(I32, [I32, int_type])
            name = f"llvm.x86.sse42.crc32.32.{width}"
            call = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.zext(builder.call(call, [builder.trunc(args[0], I32), word]), I64)

        return types.uint64(types.uint64, buf, types.int64), generate

    return intrinsic(typed)


crc_u32_at, crc_u16_at, crc_u8_at = (_crc_of_less(width) for width in (32, 16, 8))

__all__ = [name for name in dir() if name.startswith(("crc_u", "load_", "store_"))] + [
    "CACHE_LINE", "CRC_INSTRUCTION", "copy_bytes", "multiply_high", "prefetch",
    "prefetch_until", "trailing_zeros",
]  # fmt: skip
assert numba.types.intp.bitwidth == 64, "Lapse needs a 64-bit machine"
