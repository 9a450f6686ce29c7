"""C functions of installed wheels, called from kernels without Python in between.

A batch of Kafka's is a few KB: what Python does around each call of a codec costs as much as the
codec. Compiled code, which is kept on disk, calls a function by a name of ours, so the name must be
known to LLVM before such code is loaded: the module that declares functions registers them when it
is imported. Where a wheel hides its functions the names are known all the same, so that kernels
load, but must not be called: `register` returns None.

A pointer is an array and an index, as in `machine`, or a number that the library has given. The
functions stay within the sizes that they are given, whatever the bytes are; those the calling
kernel has checked.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from lapse.kernels.machine import I8, address

_PREFIX = "lapse_"
_contexts = threading.local()


def register(path: str | None, names: Sequence[str]) -> ctypes.CDLL | None:
    """Make a library's functions known; None where it has not all of them."""
    library, functions = None, [ctypes.CDLL(None).abort] * len(names)
    try:
        if path is not None:
            found = ctypes.CDLL(path)
            functions = [getattr(found, name) for name in names]
            library = found
    except (AttributeError, OSError):
        pass
    for name, function in zip(names, functions, strict=True):
        llvm.add_symbol(_PREFIX + name, ctypes.cast(function, ctypes.c_void_p).value)
    return library


def context_of_thread(library: ctypes.CDLL | None, make: str, *arguments: Any) -> int:
    """What a library keeps between calls, made by this function of it; 0 without the library.

    Made once for each thread and never freed: threads that work on rounds are few, and end with
    their process. Raises MemoryError: a function must not be called without it.
    """
    if library is None:
        return 0
    known: int | None = getattr(_contexts, make, None)
    if known is None:
        function = getattr(library, make)
        function.restype = ctypes.c_void_p
        known = int(function(*arguments) or 0)
        if not known:
            raise MemoryError(f"{make} made nothing")
        setattr(_contexts, make, known)
    return known


def pointer(context: Any, builder: Any, of_type: Any, array: Any, index: Any) -> Any:
    """Of an array's element, for `call`."""
    return builder.bitcast(address(context, builder, of_type, array, index), I8.as_pointer())


def given(builder: Any, number: Any) -> Any:
    """A pointer that the library has given, for `call`."""
    return builder.inttoptr(number, I8.as_pointer())


def spans(context: Any, builder: Any, signature: Any, args: Any) -> tuple[Any, ...]:
    """Of a function that works by such a context: (context, from, its bytes, to, room there).

    `args` begin with the context's number, array, index and size of the one, and of the other.
    """
    of = pointer(context, builder, signature.args[1], args[1], args[2])
    into = pointer(context, builder, signature.args[4], args[4], args[5])
    return given(builder, args[0]), of, args[3], into, args[6]


def call(builder: Any, name: str, values: Sequence[Any], result: Any) -> Any:
    """The result of a function with these arguments."""
    declared = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, declared, _PREFIX + name)
    return builder.call(function, values)
