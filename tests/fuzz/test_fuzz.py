"""Mutated input of every kind, in processes of their own: `make fuzz` at a size for every day."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import runner, worker
from tests.fuzz.runner import Wanted, run

CASES = 100_000


def test_no_input_does_harm(
    seed: int, scaled: Callable[[int], int], goldens: Path, tmp_path: Path
) -> None:
    """No crash, no read past a batch, no untyped error, nothing sound lost; see the targets."""
    cases = scaled(CASES)
    print(f"seed {seed}, {cases} cases")  # noqa: T201 - shown where the test fails
    outcome = run(Wanted(seed, cases, goldens, tmp_path / "saved"))
    print(outcome.table())  # noqa: T201
    assert not outcome.failures, "\n\n".join(outcome.failures)
    assert sum(outcome.counts.values()) == sum(
        worker.count_of(cases, target.share) for target in worker.TARGETS
    )
    assert all(outcome.counts[target.name] for target in worker.TARGETS)


def test_shares_are_of_a_thousand() -> None:
    assert sum(target.share for target in worker.TARGETS) == 1000


# --- it can fail ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("_FENCE.lay = lambda data: __import__('ctypes').string_at(0)", "Segmentation"),
        ("inflate = lambda *a: {}['no']", "KeyError"),
        ("inflate = lambda *a: of_batches.np.empty(1 << 33, 'u1')", "MemoryError"),
        ("inflate = lambda *a: __import__('time').sleep(99)", "no end in"),
    ],
)
def test_what_goes_wrong_is_told_with_its_input(
    change: str, told: str, goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that do something else instead."""
    if told == "no end in":
        monkeypatch.setattr(runner, "STALL_SECONDS", 4.0)
    monkeypatch.setenv(worker.FIRST, f"of_batches.{change}")
    outcome = run(Wanted(1, 100, goldens, tmp_path / "saved", only="codecs"))
    failure = outcome.failures[0]
    assert told in failure
    found = re.match(r"codecs case (-?\d+) \(make fuzz SEED=1 ONLY=codecs CASE=\1; input", failure)
    assert found
    assert (tmp_path / "saved" / f"codecs-{found[1]}" / "data").is_file()
