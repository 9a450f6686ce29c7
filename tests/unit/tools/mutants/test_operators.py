"""Which changes are made, under which names, and what is left alone."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tools.mutants import operators


def changes(code: str) -> dict[str, str]:
    """Name → the changed module as source."""
    source = textwrap.dedent(code).strip() + "\n"
    names = [site.name for site in operators.sites(ast.parse(source))]
    assert len(set(names)) == len(names)
    return {name: ast.unparse(operators.mutate(source, name)) for name in names}


def of_expression(code: str) -> dict[str, str]:
    made = changes(f"x = {code}")
    return {name.removeprefix("<module> "): new.removeprefix("x = ") for name, new in made.items()}


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        ("a < b", {"compare 1": "a <= b"}),
        ("a <= b < c", {"compare 1": "a < b < c", "compare 2": "a <= b <= c"}),
        ("a in b", {"compare 1": "a not in b"}),
        ("a is not b", {"compare 1": "a is b"}),
        ("a and b", {"boolean 1": "a or b"}),
        ("not a", {"boolean 1": "a"}),
        ("a + b", {"arithmetic 1": "a - b"}),
        ("a % b", {"arithmetic 1": "a * b"}),
        ("~a", {"arithmetic 1": "a"}),
        ("a[1]", {"constant 1": "a[2]"}),
        ("True", {"constant 1": "False"}),
        ("min(a, b)", {"call 1": "max(a, b)"}),
        ("list(reversed(a))", {"call 1": "list(list(a))"}),
        ("b if a else c", {"negate 1": "b if not a else c"}),
        ("[a for a in b if a]", {"negate 1": "[a for a in b if not a]"}),
        ("{a: b + c for a in d}", {"arithmetic 1": "{a: b - c for a in d}"}),
        ("f(a=b < c)", {"compare 1": "f(a=b <= c)"}),
        ("lambda: a < b", {"compare 1": "lambda: a <= b"}),
    ],
)
def test_expressions(code: str, becomes: dict[str, str]) -> None:
    assert of_expression(code) == becomes


@pytest.mark.parametrize(
    "code", ["'text'", "f'{a + 1}'", "'a' + b", "zip(a, b, strict=True)", "None", "a", "f(a)"]
)
def test_what_is_left_alone(code: str) -> None:
    assert of_expression(code) == {}


def test_effects_are_dropped_and_change_places() -> None:
    made = changes("""
        def f(self):
            '''Text.'''
            assert self.a > 1
            _log.info("done %d", 3)
            self.sync(a)
            for name in names:
                self.rename(name)
            self.b = c
            d = e
    """)
    assert set(made) == {"f drop 1", "f drop 2", "f drop 3", "f swap 1"}
    assert "self.sync" not in made["f drop 1"]
    assert made["f swap 1"].index("self.rename") < made["f swap 1"].index("self.sync")
    assert "self.b = c" not in made["f drop 3"]
    assert all("assert self.a > 1" in new and "%d', 3" in new for new in made.values())


@pytest.mark.parametrize(
    ("call", "is_left_alone"),
    [
        ("_log.info('done')", True),
        ("logger.exception('done')", True),
        ("logging.warning('done')", True),
        ("log.flush()", False),
        ("self.log.set_bad(None)", False),
    ],
)
def test_what_is_told_is_left_alone_and_a_partitions_log_is_not(
    call: str, is_left_alone: bool
) -> None:
    made = changes(f"def f(self):\n    {call}\n")
    assert bool(made) == (not is_left_alone)


def test_statements_that_change_places_stand_where_the_first_does() -> None:
    """A test in which that one fails runs no other line, and is the one to notice."""
    found = operators.sites(ast.parse("def f():\n    a()\n    b()\n"))
    assert [site.line for site in found if site.operator == "swap"] == [2]


def test_a_loop_that_leaves_has_its_place() -> None:
    assert not any(
        "swap" in name
        for name in changes("def f():\n  a()\n  for b in c:\n    d(b)\n    return b\n")
    )


def test_control_flow() -> None:
    made = changes("""
        def f():
            for a in b:
                if a:
                    continue
                raise error
            return a
    """)
    assert set(made) == {"f negate 1", "f loop 1", "f drop 1", "f return 1"}
    assert "break" in made["f loop 1"]
    assert "return None" in made["f return 1"]
    assert "raise" not in made["f drop 1"]


def test_places_are_known_by_their_function_and_where_it_is_planted() -> None:
    source = textwrap.dedent("""
        LIMIT = 5

        class Thing:
            size: int = 3

            @property
            def full(self, least=2):
                def inner():
                    return self.size > 1
                return inner
    """)
    found = {s.name: s.outermost for s in operators.sites(ast.parse(source))}
    assert found == {
        "<module> constant 1": None,
        "Thing constant 1": None,
        "Thing.full constant 1": None,  # a default is evaluated once
        "Thing.full return 1": (7, "Thing.full"),
        "Thing.full.inner return 1": (7, "Thing.full"),
        "Thing.full.inner compare 1": (7, "Thing.full"),
        "Thing.full.inner constant 1": (7, "Thing.full"),
    }


def test_a_name_outlives_changes_in_other_functions() -> None:
    before = changes("def f():\n    return a < b\n")
    after = changes("def e():\n    return c < d\n\ndef f():\n    return a < b\n")
    assert before.keys() < after.keys()


def test_no_such_place() -> None:
    with pytest.raises(KeyError):
        operators.mutate("x = 1\n", "<module> constant 2")
