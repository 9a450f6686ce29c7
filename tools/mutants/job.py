"""What is to be done with which mutants, and what came of each: the files that processes share."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.mutants import operators

KILLED = ("killed", "time")  # by a test that fails; by one that does not end
ALIVE = ("survived", "unreached")  # there may be a test elsewhere


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place of the project.

    Attributes:
        module, name: which one; `name` is a `Site`'s.
        path: of the source, absolute.
        line: where; the text that stands there is `text`.
        outermost: as of a `Site`; None if a fresh process must import the changed module.
    """

    module: str
    name: str
    path: str
    line: int
    text: str
    outermost: tuple[int, str] | None

    @property
    def key(self) -> str:
        """What results and the accepted list call it."""
        return f"{self.module}:{self.name}"

    def tree(self) -> ast.Module:
        """The changed module."""
        return operators.mutate(Path(self.path).read_text(), self.name)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a mutant.

    Attributes:
        outcome: of KILLED, or "survived", "unreached" (no test runs the line).
        by: the test that noticed.
        tests: how many were tried.
    """

    key: str
    outcome: str
    by: str = ""
    tests: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def as_value(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Covered:
    """What the tests do without a mutant.

    Attributes:
        tests: all that were tried.
        seconds: of the processor, traced; only of tests that pass.
        lines: path -> line -> numbers (of `tests`) of those that run it.
    """

    tests: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[str, Mapping[int, Sequence[int]]] = field(default_factory=dict)

    def running(self, path: str, line: int | None) -> set[str]:
        """The tests that run a line, or anything of a file."""
        by_line = self.lines.get(path, {})
        of_line = [by_line.get(line, ())] if line is not None else by_line.values()
        numbers = {n for each in of_line for n in each}
        return {self.tests[n] for n in numbers} & self.seconds.keys()

    def with_tests(
        self,
        tests: Sequence[str],
        lines: Mapping[str, Mapping[str, Sequence[int]]],
        seconds: Mapping[str, float],
    ) -> Covered:
        """These as well; the numbers in `lines` are of `tests`."""
        first = len(self.tests)
        both = {path: {n: list(t) for n, t in by.items()} for path, by in self.lines.items()}
        for path, by_line in lines.items():
            of_path = both.setdefault(path, {})
            for line, numbers in by_line.items():
                of_path.setdefault(int(line), []).extend(first + n for n in numbers)
        return Covered([*self.tests, *tests], {**self.seconds, **seconds}, both)

    def of(self, tests: Set[str]) -> Covered:
        """As if no others were known to pass."""
        return replace(self, seconds={t: s for t, s in self.seconds.items() if t in tests})

    def as_value(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of pytest over some mutants.

    Attributes:
        folder: where results go; forks have their temporary files below it.
        tests: files, folders or ids to run.
        paths: of the modules that mutants may be in.
        budget_seconds: how long the tests that are tried on a mutant may take without it.
        at_a_time: how many mutants.
        examples: of a Hypothesis test.
    """

    folder: str
    tests: Sequence[str]
    paths: Sequence[str]
    mutants: Sequence[Mutant]
    budget_seconds: float
    at_a_time: int
    examples: int


def of_module(root: Path, path: Path) -> list[Mutant]:
    """Every mutant of the module at `path`, below the source folder `root`."""
    source = path.read_text()
    lines = source.splitlines()
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    return [
        Mutant(module, s.name, str(path), s.line, lines[s.line - 1].strip(), s.outermost)
        for s in operators.sites(ast.parse(source))
    ]


def write(path: Path, value: object) -> None:
    """As JSON; a reader sees all of it or nothing."""
    half = path.with_name(path.name + ".half")
    half.write_text(json.dumps(value))
    half.replace(path)


def read_results(path: Path) -> dict[str, Result]:
    """By key, the last of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = (Result(**json.loads(line)) for line in lines)
    return {result.key: result for result in found}


def covered_from(path: Path) -> Covered:
    """What was measured before; nothing where there is no such file."""
    if not path.exists():
        return Covered()
    value = json.loads(path.read_text())
    lines = {p: {int(n): t for n, t in by.items()} for p, by in value["lines"].items()}
    return Covered(value["tests"], value["seconds"], lines)


def choose(mutant: Mutant, covered: Covered, budget_seconds: float) -> list[str]:
    """The tests for a mutant, those first that most likely notice it, within a sum of times.

    Of what runs at import, those that run anything of the module, and its own: who reads a default
    or an enum's values runs none of its lines.
    """
    running = covered.running(mutant.path, mutant.line if mutant.outermost else None)
    folder, _, noun = mutant.module.removeprefix("lapse.").replace(".", "/").rpartition("/")
    mirror = f"tests/unit/{folder}/test_{noun}"
    if mutant.outermost is None:
        running |= {test for test in covered.seconds if test.startswith(mirror)}

    def rank(test: str) -> tuple[bool, bool, float]:
        is_unit = test.startswith("tests/unit/")
        return not test.startswith(mirror), not is_unit, covered.seconds[test]

    chosen: list[str] = []
    sum_seconds = 0.0
    for test in sorted(running, key=rank):
        sum_seconds += covered.seconds[test]
        if chosen and sum_seconds > budget_seconds:
            break
        chosen.append(test)
    return chosen


def mutants_of(source: Path, paths: Iterable[Path]) -> list[Mutant]:
    """Every mutant of the modules at `paths`, below the source folder."""
    return [m for path in sorted(paths) for m in of_module(source, path)]


def settings_from(path: Path) -> Settings:
    value = json.loads(path.read_text())
    mutants = tuple(
        Mutant(**{**m, "outermost": tuple(m["outermost"]) if m["outermost"] else None})
        for m in value.pop("mutants")
    )
    return Settings(**{**value, "tests": tuple(value["tests"])}, mutants=mutants)
