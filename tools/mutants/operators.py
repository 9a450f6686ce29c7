"""Small changes of a module's code, each of which a test should notice.

`sites` lists where a module can be changed, in the order of its source; `mutate` makes the tree
with one of them changed. A site is named by the function it is in, its operator, and which of that
operator's sites in the function it is: `lapse.log.swap:finish_swap drop 3`. So a name outlives
changes elsewhere in the file.

What is left alone, and counts nowhere:

- texts: docstrings, f-strings, messages; what is logged; annotations and decorators;
- `assert`: it is there for programmers' errors and never fails;
- `zip(…, strict=True)`, which is an `assert` too;
- plain assignments to a name: without one the next line fails, whatever it does.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "reversed": "list"}
LOGGERS = {"log", "logger", "logging"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Site:
    """One place and one change.

    Attributes:
        function: qualified name of the function or class the place is in; "" for a module.
        operator: what kind of change.
        ordinal: from 1, which of the operator's places in that function.
        line: where, as the file stands now; of two statements the first, which every test runs
            that can tell.
        outermost: first line and qualified name of the function to plant it in; None if the code
            runs when the module is imported.
        change: does it, to the tree that it was found in.
    """

    function: str
    operator: str
    ordinal: int
    line: int
    outermost: tuple[int, str] | None
    change: Callable[[], None]

    @property
    def name(self) -> str:
        """Unique within a module."""
        return f"{self.function or '<module>'} {self.operator} {self.ordinal}"


def sites(tree: ast.Module) -> list[Site]:
    """Every place of a module, in the order of its source."""
    walk = _Walk()
    walk.block(tree.body)
    return walk.found


def mutate(source: str, name: str) -> ast.Module:
    """The module's tree with the site of this name changed.

    Raises:
        KeyError: there is no such site.
    """
    tree = ast.parse(source)
    by_name = {site.name: site for site in sites(tree)}
    by_name[name].change()
    return ast.fix_missing_locations(tree)


class _Walk:
    """Goes through a tree and notes its sites."""

    def __init__(self) -> None:
        self.found: list[Site] = []
        self._function = ""
        self._outermost: tuple[int, str] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()

    def _note(self, operator: str, node: ast.AST, change: Callable[[], None]) -> None:
        self._counts[self._function, operator] += 1
        ordinal = self._counts[self._function, operator]
        line = node.lineno  # type: ignore[attr-defined]
        site = Site(self._function, operator, ordinal, line, self._outermost, change)
        self.found.append(site)

    # --- statements

    def block(self, body: list[ast.stmt]) -> None:
        for i, statement in enumerate(body):
            if _is_left_alone(statement):
                continue
            if _is_effect(statement):
                self._note("drop", statement, _setting_item(body, i, ast.Pass()))
            if i and _has_order(body[i - 1]) and _has_order(statement):
                self._note("swap", body[i - 1], _swapping(body, i))
            if isinstance(statement, ast.Continue):
                self._note("loop", statement, _setting_item(body, i, ast.Break()))
            elif isinstance(statement, ast.Break):
                self._note("loop", statement, _setting_item(body, i, ast.Continue()))
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, FUNCTIONS):
            self._define(node)
        elif isinstance(node, ast.ClassDef):
            self._inside(node.name, lambda: self.block(node.body))
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._expression(node, "value")
        elif isinstance(node, ast.Return):
            value = node.value
            if value is not None and not isinstance(value, ast.Constant):
                self._note("return", node, _setting(node, "value", ast.Constant(None)))
            self._children(node)
        else:
            self._children(node)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        def parts() -> None:
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._of(default)  # evaluated where the function is defined
            outside = self._outermost
            if outside is None:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                self._outermost = first, self._function
            self.block(node.body)
            self._outermost = outside

        self._inside(node.name, parts)

    def _inside(self, name: str, parts: Callable[[], None]) -> None:
        outside = self._function
        self._function = f"{outside}.{name}" if outside else name
        parts()
        self._function = outside

    # --- expressions

    def _children(self, node: ast.AST) -> None:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    self.block(value)
                else:
                    for i, item in enumerate(value):
                        if isinstance(item, ast.expr):
                            self._change(item, _setter_item(value, i))
                        elif isinstance(item, ast.AST):
                            self._children(item)
            elif isinstance(value, ast.expr):
                self._expression(node, field)
            elif isinstance(value, ast.AST):
                self._children(value)

    def _expression(self, owner: ast.AST, field: str) -> None:
        self._change(getattr(owner, field), lambda new: setattr(owner, field, new))
        if field == "test" and isinstance(owner, ast.If | ast.While | ast.IfExp):
            self._condition(owner, field)

    def _condition(self, owner: ast.AST, field: str) -> None:
        test = getattr(owner, field)
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Await | ast.NamedExpr):
            self._note("negate", test, _setting(owner, field, ast.UnaryOp(ast.Not(), test)))

    def _of(self, node: ast.expr) -> None:
        """A value that stands in no field of its own: changed in place."""
        if isinstance(node, ast.Constant):
            for new in _other_constant(node.value):
                self._note("constant", node, _setting(node, "value", new))
        else:
            self._children(node)

    def _change(self, node: ast.expr, put: Callable[[ast.expr], object]) -> None:
        """Note the changes of an expression, which `put` replaces."""
        if isinstance(node, ast.JoinedStr):
            return
        for operator, new in _replacements(node):
            self._note(operator, node, _putting(put, node, new))
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                self._note("compare", node, _setting_item(node.ops, i, COMPARISONS[type(op)]()))
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            self._note("boolean", node, _setting(node, "op", other))
        elif isinstance(node, ast.BinOp) and not _is_text(node):
            instead = ARITHMETIC.get(type(node.op))
            if instead is not None:
                self._note("arithmetic", node, _setting(node, "op", instead()))
        self._children_of_expression(node)

    def _children_of_expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            strict = isinstance(node.func, ast.Name) and node.func.id == "zip"
            self._expression(node, "func")
            for i, argument in enumerate(node.args):
                self._change(argument, _setter_item(node.args, i))
            for keyword in node.keywords:
                if not (strict and keyword.arg == "strict"):
                    self._expression(keyword, "value")
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            self._children(node)
            for part in node.generators:
                for i, test in enumerate(part.ifs):
                    if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                        new = ast.UnaryOp(ast.Not(), test)
                        self._note("negate", test, _setting_item(part.ifs, i, new))
        else:
            self._children(node)


# --- what may be changed, and into what --------------------------------------------------------


def _replacements(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Constant):
        for value in _other_constant(node.value):
            yield "constant", ast.Constant(value)  # type: ignore[arg-type]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", node.operand
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield "arithmetic", node.operand
    elif isinstance(node, ast.Name) and node.id in CALLS and isinstance(node.ctx, ast.Load):
        yield "call", ast.Name(CALLS[node.id], ast.Load())


def _other_constant(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    return []


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, ast.JoinedStr)


def _is_left_alone(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):  # a docstring, or `...`
        return True
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    if value.func.attr not in LEVELS:  # a partition's log has other methods
        return False
    whom = value.func.value
    name = whom.id if isinstance(whom, ast.Name) else getattr(whom, "attr", "")
    return name.strip("_").lower() in LOGGERS


def _is_effect(statement: ast.stmt) -> bool:
    """Whether a statement is there for what it does, not for a name that it binds."""
    if isinstance(statement, ast.Expr | ast.Raise | ast.Delete):
        return True
    if isinstance(statement, ast.AugAssign):
        return True
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(t, ast.Attribute | ast.Subscript) for t in targets)


def _has_order(statement: ast.stmt) -> bool:
    """Whether it matters when it happens: a call, or a loop over calls that does not leave."""
    if _is_left_alone(statement):
        return False
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await)
    if isinstance(statement, ast.For | ast.AsyncFor):
        inside = list(ast.walk(statement))
        leaves = any(isinstance(n, ast.Return | ast.Yield | ast.YieldFrom) for n in inside)
        return not leaves and any(isinstance(n, ast.Expr) for n in inside)
    return False


def _setting(owner: ast.AST, field: str, new: object) -> Callable[[], None]:
    return lambda: setattr(owner, field, new)


def _setting_item(items: list[Any], i: int, new: ast.AST) -> Callable[[], None]:
    def change() -> None:
        if "lineno" in type(new)._attributes:
            ast.copy_location(new, items[i])
        items[i] = new

    return change


def _swapping(body: list[ast.stmt], i: int) -> Callable[[], None]:
    def change() -> None:
        body[i - 1], body[i] = body[i], body[i - 1]

    return change


def _setter_item(items: list[Any], i: int) -> Callable[[ast.expr], object]:
    return lambda new: items.__setitem__(i, new)


def _putting(put: Callable[[ast.expr], object], old: ast.expr, new: ast.expr) -> Callable[[], None]:
    def change() -> None:
        put(ast.copy_location(new, old))

    return change
