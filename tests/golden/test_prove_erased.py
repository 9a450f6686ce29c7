"""Directories that real Kafka wrote: every key is found as often as it is there, no other is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.kernels.layout import CONTROL
from lapse.lifecycle.erase.findings import BATCHES, KEYLESS
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.proof import PROVEN, REMAINS, judge, totals
from lapse.lifecycle.erase.replicas import ReplicaFindings, Where, look_through
from lapse.lifecycle.erase.search import Search, make_search, spec_of
from lapse.records.batch import records_of, scan_prefix

NEVER, THERE = b"never-written-anywhere", b"k10"


def stages(goldens: Path) -> Iterator[tuple[Path, str]]:
    """Log directories and their topics: of each the last stage but one, which most was done to."""
    for topic in sorted(path for path in (goldens / "golden").iterdir() if path.is_dir()):
        has_it = sorted(path.parent for path in topic.glob(f"*/{topic.name}-0"))
        if has_it:
            yield has_it[-2:][0], topic.name


def keys_in(partitions: list[Path]) -> tuple[Counter[tuple[bytes, bool]], bool]:
    """(key, whether it has a value) of all records up to any damage; whether there is none."""
    found: Counter[tuple[bytes, bool]] = Counter()
    whole = True
    for path in (path for folder in partitions for path in sorted(folder.rglob("*.log*"))):
        data = path.read_bytes()
        rows, _, reason = scan_prefix(data)
        whole &= reason is None
        for row in rows[(rows["magic"] < 2) | (rows["attributes"] & CONTROL == 0)]:
            records = records_of(data, row, str(path))
            found.update((r.key, r.value is not None) for r in records if r.key)
    return found, whole


def looked(folder: Path, topic: str, search: Search) -> ReplicaFindings:
    clock = SystemClock()
    run = InlineAudits(search, clock, lambda _: None)
    return look_through(Where(str(folder), topic), run, clock)


def test_every_key_is_found_as_often_as_it_is_there(goldens: Path) -> None:
    seen_topics = 0
    for folder, topic in stages(goldens):
        there, whole = keys_in(sorted(folder.glob(f"{topic}-[0-9]")))
        keys = sorted({key for key, _ in there})
        search = make_search([*keys, NEVER])
        seen = looked(folder, topic, search)
        counts = totals([seen])
        for n, key in enumerate(keys):
            found = counts[n].records, counts[n].tombstones
            expected = there[key, True], there[key, False]
            assert found == expected or (not whole and found > expected), (folder, topic, key)
        assert len(keys) not in counts
        segments = [f for f in seen.files if f.path.endswith(".log")]
        assert segments
        assert {f.kind for f in segments} == {BATCHES}
        seen_topics += whole
    assert seen_topics > 20


@pytest.mark.parametrize("stage", ["golden/compact-none/3-more", "golden-clean-shutdown"])
def test_a_verdict_on_what_kafka_left(stage: str, goldens: Path) -> None:
    for keys, state in (([NEVER], PROVEN), ([NEVER, THERE], REMAINS)):
        search = make_search(keys)
        seen = looked(goldens / stage, "compact-none", search)
        verdict = judge([seen], spec_of(search, "5a17"), "compact-none")
        assert verdict.state == state, verdict
        assert {f.kind for f in seen.files if f.path.endswith("index")} == {KEYLESS}
