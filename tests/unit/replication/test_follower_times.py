"""A replica's records are as old as its leader's, however late it fetches them (KIP-32)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.append_times import NOTHING, UNKNOWN, AppendTimes
from lapse.replication import follower
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, TP, append, batch, config

DAY_MS = 24 * 3600 * 1000
FETCH_BYTES = 900


@dataclass
class Replica:
    """One broker's, with a clock of its own."""

    clock: ManualClock
    directory: LogDirectory

    @property
    def log(self) -> PartitionLog:
        return self.directory.logs[TP]

    def appended(self, values: int = 1) -> None:
        for _ in range(values):
            append(self.log, batch(records=2, size=100), now_ms=self.clock.now_ms())

    def known(self) -> AppendTimes:
        """Entries of all segments."""
        parts = []
        for segment, after in pairwise([*self.log.segments, None]):
            assert segment is not None
            end = self.log.log_end_offset if after is None else after.base_offset
            parts.append(segment.append_times(segment.base_offset, end))
        return AppendTimes(
            np.concatenate([one.offsets for one in parts]),
            np.concatenate([one.times for one in parts]),
        )

    def fetch_all(self, leader: Replica) -> None:
        """As `broker.api.fetch` answers and `broker.replicas.fetcher` asks."""
        while self.log.log_end_offset < leader.log.log_end_offset:
            got = leader.log.read(self.log.log_end_offset, FETCH_BYTES)
            answer = follower.Fetched(
                got.read(), 0, 0, None, got.append_times(), got.create_times_kept
            )
            follower.take(self.log, self.directory, answer, 0)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    made = []
    for name in ("leader", "follower"):
        clock = ManualClock(NOW)
        (tmp_path / name).mkdir()
        directory = LogDirectory.open(tmp_path / name, LogEnv(RealFs(), clock))
        directory.create_log(TP, config(), replicated=True)
        made.append(Replica(clock, directory))
    made[1].clock.advance(30 * DAY_MS)
    yield made[0], made[1]
    for one in made:
        one.directory.close()


def shown(replica: Replica) -> list[int]:
    offsets = np.arange(replica.log.log_end_offset)
    return replica.known().shown(offsets).tolist()


def test_what_is_fetched_weeks_later_is_as_old(replicas: tuple[Replica, Replica]) -> None:
    leader, late = replicas
    for _ in range(12):
        leader.appended(2)
        leader.clock.advance(700)
    late.fetch_all(leader)
    assert len(late.log.segments) > 3
    assert shown(late) == shown(leader)
    for own, other in zip(late.log.segments, leader.log.segments, strict=True):
        assert 0 <= own.append_last_ms - other.append_last_ms < 1000


def test_who_leads_next_goes_on_by_its_own_clock(replicas: tuple[Replica, Replica]) -> None:
    leader, late = replicas
    leader.appended()
    late.fetch_all(leader)
    late.appended()
    assert shown(late) == [NOW, NOW, late.clock.now_ms(), late.clock.now_ms()]


def test_of_what_the_leader_does_not_know_it_is_known_that_it_is_no_newer(
    replicas: tuple[Replica, Replica],
) -> None:
    _, late = replicas
    answer = follower.Fetched(batch(records=2), 0, 0, None, NOTHING)
    follower.take(late.log, late.directory, answer, 0)
    assert shown(late) == [-1, -1]  # clients are told nothing
    (latest,) = late.known().latest().tolist()
    assert 0 < latest - late.clock.now_ms() <= 1000
    assert late.log.segments[-1].append_last_ms == late.clock.now_ms()


@pytest.mark.parametrize(
    ("entry", "last_ms"),
    [
        (UNKNOWN, None), (0, None), (-(NOW + 5), NOW + 5), (NOW, NOW + 999),
        (NOW + 100 * DAY_MS, None), ((1 << 63) - 1, None),
    ],
)  # fmt: skip
def test_whatever_a_leader_says_nothing_is_newer_than_now(
    replicas: tuple[Replica, Replica], entry: int, last_ms: int | None
) -> None:
    _, late = replicas
    said = AppendTimes(np.array([0]), np.array([entry]))
    follower.take(late.log, late.directory, follower.Fetched(batch(), 0, 0, None, said), 0)
    now_ms = late.clock.now_ms()
    assert late.log.segments[-1].append_last_ms == (now_ms if last_ms is None else last_ms)


def test_the_clock_of_a_log_never_goes_back(replicas: tuple[Replica, Replica]) -> None:
    _, late = replicas
    for offset, entry in ((0, NOW + 5000), (5, NOW)):
        said = AppendTimes(np.array([offset]), np.array([entry]))
        answer = follower.Fetched(batch(records=5, base_offset=offset), 0, 0, None, said)
        follower.take(late.log, late.directory, answer, 0)
    assert shown(late) == [NOW + 5000] * 5 + [NOW] * 5  # as the leader shows it
    assert late.log.segments[-1].append_last_ms == NOW + 5999


def test_times_outlive_a_crash(replicas: tuple[Replica, Replica]) -> None:
    leader, late = replicas
    for _ in range(6):
        leader.appended()
        leader.clock.advance(2000)
    late.fetch_all(leader)
    late.log.keep_append_times()
    late.directory.close(clean=False)
    late.directory = LogDirectory.open(late.directory.path, LogEnv(RealFs(), late.clock))
    late.directory.open_log(TP, config(), replicated=True)
    # Of the last entry only the first offset is certain, as on a leader after a crash.
    assert shown(late)[:-1] == shown(leader)[:-1]


def test_a_leaders_segment_whose_create_times_a_cleaner_has_replaced(
    replicas: tuple[Replica, Replica],
) -> None:
    _, late = replicas
    answer = follower.Fetched(batch(), 0, 0, None, NOTHING, create_times_kept=False)
    follower.take(late.log, late.directory, answer, 0)
    assert not late.log.segments[-1].create_times_kept
