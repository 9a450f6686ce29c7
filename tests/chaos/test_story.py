"""A story is a function of its seed, and says what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos import faults
from tests.chaos.story import INTERPOSER, KINDS, MOMENTS, Story, decode, draw, encode

SEEDS = range(200)


def test_a_seed_is_a_story() -> None:
    assert draw(7, 600) == draw(7, 600)
    assert draw(7, 600) != draw(8, 600)


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    short, long = draw(7, 60).faults, draw(7, 600).faults
    assert long[: len(short)] == short


def test_all_kinds_come_and_each_seed_leaves_some_out() -> None:
    stories = [{fault.kind for fault in draw(seed, 1200).faults} for seed in SEEDS]
    assert set.union(*stories) == set(KINDS)
    assert sum(story != set(KINDS) for story in stories) > len(SEEDS) * 0.9


def test_all_details_come() -> None:
    told = {(f.kind, f.detail) for seed in SEEDS for f in draw(seed, 1200).faults}
    for name, kind in KINDS.items():
        assert {detail for k, detail in told if k == name} == set(kind.details)


def test_faults_lie_in_the_run_and_last_as_their_kind_does() -> None:
    for seed in SEEDS:
        at_s = [fault.at_s for fault in draw(seed, 120).faults]
        assert at_s == sorted(at_s)
        assert all(0 < one < 120 for one in at_s)
        for fault in draw(seed, 120).faults:
            shortest, longest = KINDS[fault.kind].seconds
            assert shortest <= fault.seconds <= longest


def test_what_a_machine_lacks_is_left_out() -> None:
    for seed in SEEDS:
        kinds = {fault.kind for fault in draw(seed, 600, lacking=(INTERPOSER,)).faults}
        assert kinds
        assert not any(KINDS[kind].needs for kind in kinds)


def test_only_some_kinds() -> None:
    assert {fault.kind for fault in draw(1, 600, only=("kill", "lose")).faults} == {"kill", "lose"}


def test_a_story_is_kept_and_told_again() -> None:
    story = draw(3, 60)
    assert decode(encode(story)) == story
    fewer = replace(story, faults=story.faults[:2])
    assert decode(encode(fewer)) == fewer


def test_people_can_read_it() -> None:
    fault = draw(1, 60, only=("freeze",)).faults[0]
    lines = Story(1, 60, (fault,)).lines()
    assert lines[0] == "seed 1, 60 s, 1 faults"
    assert lines[1].endswith(f"freeze {fault.detail} for {fault.seconds:.1f} s")


def test_each_kind_is_carried_out() -> None:
    assert set(faults.BEGINS) == set(KINDS)


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_named_in_stories(name: str) -> None:
    assert any(detail.split()[0] == name for detail in KINDS["kill-at"].details)
