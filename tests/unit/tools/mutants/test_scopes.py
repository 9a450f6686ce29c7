"""Which mutants are drawn, and which tests are tried on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.mutants import job, scopes
from tools.mutants.__main__ import SOURCE, main


def mutants(n: int, module: str = "lapse.log.swap") -> list[job.Mutant]:
    return [job.Mutant(module, f"f compare {i}", "swap.py", i, "", (1, "f")) for i in range(n)]


def test_lots_are_by_name_and_seed() -> None:
    known = mutants(100)
    drawn = scopes.drawn(known, 20, 1)
    assert len(drawn) == 20
    assert drawn[:7] == scopes.drawn(known, 7, 1), "a part of a run is a draw too"
    assert drawn == scopes.drawn(known, 20, 1) != scopes.drawn(known, 20, 2)
    more = [*mutants(1, "lapse.log.aaa"), *known]
    assert len(set(drawn) & set(scopes.drawn(more, 20, 1))) >= 19, "one more changes one at most"
    assert scopes.drawn(known, None, 1) == known
    assert set(scopes.drawn(known, 100, 1)) == set(known)


def test_scopes_name_what_is_there() -> None:
    for scope in scopes.SCOPES.values():
        assert scopes.modules(SOURCE, scope)
        for names in (scope.tests, scope.wider):
            assert len(scopes.tests(SOURCE.parent, names)) == len(names)


def test_tests_that_mirror_the_module_come_first_and_no_more_than_there_is_time_for() -> None:
    tests = ["tests/crash/c.py::a", "tests/unit/log/test_swap.py::b", "tests/unit/x.py::c"]
    tests += ["tests/unit/log/test_swap.py::d", "tests/unit/fails.py::e"]
    seconds = dict(zip(tests, (0.1, 2.0, 0.5, 1.0), strict=False))
    covered = job.Covered(tests, seconds, {"swap.py": {7: [0, 1, 2, 3, 4], 8: [2]}})
    [first, *_] = mutants(1)
    at_7 = job.Mutant(first.module, "f compare 1", "swap.py", 7, "", (1, "f"))
    wanted = [tests[3], tests[1], tests[2], tests[0]]
    assert job.choose(at_7, covered, 9.0) == wanted, "but not what fails without it"
    assert job.choose(at_7, covered, 3.2) == wanted[:2]
    assert job.choose(at_7, covered, 0.0) == wanted[:1], "one at least"
    assert job.choose(first, covered, 9.0) == []
    imported = job.Mutant(first.module, "<module> constant 1", "swap.py", 1, "", None)
    assert job.choose(imported, covered, 9.0) == wanted, "whatever runs anything of it"
    reads_a_default = "tests/unit/log/test_swap_more.py::f"
    with_it = covered.with_tests([reads_a_default], {}, {reads_a_default: 0.2})
    assert job.choose(imported, with_it, 9.0) == [reads_a_default, *wanted], "and what is its own"
    assert job.choose(at_7, with_it, 9.0) == wanted


def test_what_is_measured_later_is_added() -> None:
    covered = job.Covered(["a"], {"a": 1.0}, {"p": {3: [0]}})
    both = covered.with_tests(["b", "c"], {"p": {"3": [1], "4": [0]}}, {"b": 2.0, "c": 1.0})
    assert both.running("p", 3) == {"a", "c"}
    assert both.running("p", 4) == {"b"}
    assert both.of({"a", "b"}).running("p", None) == {"a", "b"}


def test_a_folder_is_told_of_without_trying_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not tried is not killed; of other sources the folder knows nothing."""
    record = tmp_path / "mutants.json"
    asked = ["--only", "commit", "--folder", str(tmp_path), "--read", "--record", str(record)]
    assert main(asked) == 1
    [folder] = (p for p in tmp_path.iterdir() if p.is_dir())
    scope = scopes.SCOPES["commit"]
    known = job.mutants_of(SOURCE, scopes.modules(SOURCE, scope))
    lines = [json.dumps(job.Result(m.key, "killed").as_value()) for m in known[1:]]
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    main(asked)
    printed = capsys.readouterr().out
    assert f"not tried: {known[0].key}" in printed
    assert f"of {len(known)} killed" in printed
    told = json.loads(record.read_text())["scopes"]["commit"]
    assert (told["killed"], told["not tried"]) == (len(known) - 1, 1)
