"""Which masters are this machine, and with how many slots."""

from __future__ import annotations

import pytest

from lapse.lifecycle.round.slots import local_slots


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1), ("local[*]", 8), ("local[3]", 3), ("local[*,4]", 8), ("local[2,4]", 2),
        ("local-cluster[2,1,1024]", None), ("spark://host:7077", None), ("yarn", None),
    ],
)  # fmt: skip
def test_which_masters_are_this_machine(master: str, slots: int | None) -> None:
    assert local_slots(master, 8) == slots
