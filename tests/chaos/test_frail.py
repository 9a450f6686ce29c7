"""The damaged topic: what is done to it, and what counts as being told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.frail import TOPIC, Frail, damage, is_well
from tests.chaos.story import KINDS

SIZE = 5000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three partitions, of three sealed segments and an active one each."""
    for n in range(3):
        folder = tmp_path / f"{TOPIC}-{n}"
        folder.mkdir()
        for base in range(0, 40, 10):
            (folder / f"{base:020d}.log").write_bytes(bytes([1]) * SIZE)
    return tmp_path


def files(data: Path) -> dict[str, bytes]:
    return {str(p.relative_to(data)): p.read_bytes() for p in data.rglob("*.log")}


@pytest.mark.parametrize("how", KINDS["damage"].details)
@pytest.mark.parametrize("seed", range(5))
def test_one_partition_is_damaged_where_no_recovery_looks(data: Path, how: str, seed: int) -> None:
    before = files(data)
    name = damage(data, how, seed)
    assert name.startswith(f"{TOPIC}-")
    after = files(data)
    changed = {path for path in before if after.get(path) != before[path]}
    assert changed
    assert {path.split("/")[0] for path in changed} == {name}
    assert (data / name).exists() == (how != "remove-folder")
    if how != "remove-folder":
        assert len(changed) == 1
        assert not any(path.endswith(("0020.log", "0030.log")) for path in changed)


def test_a_log_that_has_no_middle_is_left_alone(tmp_path: Path) -> None:
    for n in range(3):
        folder = tmp_path / f"{TOPIC}-{n}"
        folder.mkdir()
        (folder / f"{0:020d}.log").write_bytes(bytes(SIZE))
    assert damage(tmp_path, "cut", 1) == ""


@pytest.mark.parametrize(
    ("status", "body", "damaged", "well"),
    [
        (200, "serving\n", (), True),
        (503, "degraded\n1 log in data is offline: frail-1: a segment is missing\n", (), False),
        (503, "degraded\n1 log is offline: frail-1: gone\n", ("frail-1",), True),
        (503, "degraded\n2 logs are offline: frail-1: gone, keyed-0: gone\n", ("frail-1",), False),
        (503, "degraded\nthe disk is full\n", ("frail-1",), False),
        (503, "degraded\nfrail-1: gone\nthe disk is full\n", ("frail-1",), False),
        (503, "degraded\n", ("frail-1",), False),
        (0, "refused", ("frail-1",), False),
    ],
)
def test_all_is_well_but_for_what_was_damaged(
    status: int, body: str, damaged: tuple[str, ...], *, well: bool
) -> None:
    assert is_well(status, body, damaged) == well


def test_a_log_that_begins_anew_is_told_by_its_offsets() -> None:
    frail = Frail("127.0.0.1:1")
    for said in ("one", "one"):  # a record may be answered twice
        frail.acknowledge(0, 7, said)
    assert not frail.given_twice
    frail.acknowledge(0, 7, "other")
    assert frail.given_twice == {0}
