"""Puts a changed function in the place of the one that a running process has.

Whoever imported the function keeps it: only its code object is another. What a module did when it
was imported cannot be changed that way; such mutants get a process that imports the changed module
(`fresh`).
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType


class CannotPlantError(Exception):
    """There is no such function in this process, or the changed code does not fit it."""


Functions = Mapping[tuple[str, int, str], Sequence[FunctionType]]


def functions_of(paths: Collection[str]) -> Functions:
    """The functions of this process that the modules at `paths` define, by path, line and name."""
    found: dict[tuple[str, int, str], list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in paths:
            code = each.__code__
            key = code.co_filename, code.co_firstlineno, code.co_qualname
            found.setdefault(key, []).append(each)
    return found


def plant(tree: ast.Module, path: str, line: int, function: str, known: Functions) -> None:
    """Give the function that begins at `line` of the module at `path` its code in `tree`.

    Raises:
        CannotPlantError: nothing was changed.
    """
    codes = _codes(compile(tree, path, "exec"))
    wanted = (c for c in codes if (c.co_firstlineno, c.co_qualname) == (line, function))
    code = next(wanted, None)
    alive = known.get((path, line, function))
    if code is None or not alive:
        raise CannotPlantError(f"{function} at line {line} of {path} is not there")
    if any(f.__code__.co_freevars != code.co_freevars for f in alive):
        raise CannotPlantError(f"{function} closes over other names when changed")
    for found in alive:
        found.__code__ = code
    forget_answers()


def forget_answers() -> None:
    """Empty what `functools.cache` has kept: it may be the unchanged function's."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lapse"):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear):
                    clear()


def import_changed(path: str, tree: ast.Module) -> None:
    """From now on the module at `path`, not imported yet, is imported as `tree`."""
    code = compile(tree, path, "exec")
    as_it_is = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return code if self.path == path else as_it_is(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
