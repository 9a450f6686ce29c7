"""Tests of several parameters where each combination costs seconds: `@pytest.mark.combined`.

`make test` runs every value of each parameter, and `make torture` every combination: what a value
does alone is where mistakes are, and three brokers a test are not cheap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

MARK = "combined"


def every_value_once(combinations: Sequence[Mapping[str, int]]) -> list[bool]:
    """Which of a test's combinations to run, so that each value of each parameter is in one.

    A combination has the index of a value for each parameter's name. The longest parameter's
    values come once, the others' again from their first one.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    for combination in combinations:
        for name, index in combination.items():
            counts[name] = max(counts[name], index + 1)
    turns = range(max(counts.values(), default=1))
    chosen = [{name: turn % count for name, count in counts.items()} for turn in turns]
    return [combination in chosen for combination in combinations]
