"""Tests of several parameters where each combination costs seconds: `@pytest.mark.combined`.

`make test` runs every value of each parameter, and `make torture` every combination: what a value
does alone is where mistakes are, and three brokers a test are not cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MARK = "combined"


def every_value_once(combinations: Sequence[Mapping[str, object]]) -> list[bool]:
    """Which of a test's combinations to run, so that each value of each parameter is in one.

    A combination has a value for each parameter's name. Those of the parameter with most of them
    come once, the others' again from their first one.
    """
    values: dict[str, list[object]] = {}
    for combination in combinations:
        for name, value in combination.items():
            known = values.setdefault(name, [])
            if value not in known:
                known.append(value)
    turns = range(max(map(len, values.values()), default=1))
    chosen = [{name: known[n % len(known)] for name, known in values.items()} for n in turns]
    return [combination in chosen for combination in combinations]
