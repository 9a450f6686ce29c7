"""Committed offsets: what is asked becomes entries, what was appended becomes offsets."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.base.times import FOREVER_MS
from lapse.coordination.offsets.expiry import ExpiryRule
from lapse.coordination.offsets.store import (
    FetchedOffset,
    NewOffset,
    OffsetSettings,
    OffsetStore,
)
from lapse.coordination.records.entries import (
    Entry,
    Marker,
    Write,
    decode_entry,
    encode_entry,
    fold,
)
from lapse.coordination.records.groups import groups_of
from lapse.coordination.records.offsets import OFFSET_COMMIT, TYPES, OffsetCommitValue
from lapse.wire.declaration import ZERO_UUID

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOW_MS, DAY_MS = 1_000_000, 86_400_000
PRODUCER, OTHER = 7, 8


class Log:
    """A store and the log it is appended to."""

    def __init__(self, **settings: int) -> None:
        self.store = OffsetStore(OffsetSettings(**settings))
        self.events: list[Write | Marker] = []
        self._offsets = itertools.count()

    def append(self, entries: Iterable[Entry], producer_id: int = -1) -> None:
        """Through their bytes."""
        for entry in entries:
            data = encode_entry(entry.type, entry.key, entry.value, entry.version)
            self._add(Write(next(self._offsets), decode_entry(TYPES, *data), producer_id))

    def end(self, producer_id: int, *, commit: bool) -> None:
        next(self._offsets)
        self._add(Marker(producer_id, commit))

    def _add(self, event: Write | Marker) -> None:
        self.events.append(event)
        self.store.apply(event)

    def commit(self, group: str, offsets: dict[TopicPartition, int], producer_id: int = -1) -> None:
        new = {tp: NewOffset(offset) for tp, offset in offsets.items()}
        self.append(self.store.commit(group, new, NOW_MS).entries, producer_id)

    def fetched(self, group: str, **more: Any) -> dict[TopicPartition, int | ErrorCode]:
        found = self.store.fetch(group, **more)
        return {tp: f.error or f.offset for tp, f in found.items()}


def entry_of(store: OffsetStore, new: NewOffset, **more: int) -> Entry:
    (entry,) = store.commit("g", {T0: new}, NOW_MS, **more).entries
    return entry


# --- commits ----------------------------------------------------------------------------------


def test_nothing_shows_before_it_was_appended() -> None:
    log = Log()
    outcome = log.store.commit("g", {T0: NewOffset(5)}, NOW_MS)
    assert outcome.errors == {T0: ErrorCode.NONE}
    assert log.fetched("g", partitions=[T0]) == {T0: -1}
    log.append(outcome.entries)
    assert log.fetched("g", partitions=[T0, T1]) == {T0: 5, T1: -1}
    assert log.fetched("other", partitions=[T0]) == {T0: -1}


@pytest.mark.parametrize(
    ("new", "retention_ms", "value", "version"),
    [
        (NewOffset(5), -1, {}, OFFSET_COMMIT.written),
        (NewOffset(5, 3, "m"), -1, {"leader_epoch": 3, "metadata": "m"}, OFFSET_COMMIT.written),
        (NewOffset(5, commit_timestamp_ms=9), -1, {"commit_timestamp": 9}, OFFSET_COMMIT.written),
        (NewOffset(5), 60, {"expire_timestamp": NOW_MS + 60}, 1),
        (NewOffset(5), FOREVER_MS, {"expire_timestamp": FOREVER_MS}, 1),
    ],
    ids=[
        "plain",
        "epoch-and-metadata",
        "time-of-version-1",
        "retention-of-versions-2-to-4",
        "for-ever",
    ],
)
def test_what_is_written(
    new: NewOffset, retention_ms: int, value: dict[str, Any], version: int
) -> None:
    entry = entry_of(Log().store, new, retention_ms=retention_ms)
    plain: dict[str, Any] = {"offset": 5, "metadata": "", "commit_timestamp": NOW_MS}
    assert entry.value == OffsetCommitValue(**(plain | value))
    assert entry.version == version


def test_metadata_that_is_too_large_is_refused_alone() -> None:
    log = Log(metadata_size_max=4)
    offsets = {T0: NewOffset(1, metadata="12345"), T1: NewOffset(2, metadata="1234")}
    outcome = log.store.commit("g", offsets | {U0: NewOffset(3, metadata="𝄞𝄞𝄞")}, NOW_MS)
    large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert outcome.errors == {T0: large, T1: ErrorCode.NONE, U0: large}
    assert [e.value.offset for e in outcome.entries] == [2]


def test_fetch_gives_what_was_committed_with_it() -> None:
    log = Log()
    log.append(log.store.commit("g", {T0: NewOffset(5, 3, "m")}, NOW_MS).entries)
    assert log.store.fetch("g") == {T0: FetchedOffset(ErrorCode.NONE, 5, 3, "m")}


# --- transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_counts_from_its_commit(commit: bool) -> None:
    log = Log()
    log.commit("g", {T0: 1})
    log.commit("g", {T0: 5, T1: 6}, PRODUCER)
    assert log.fetched("g") == {T0: 1}
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    asked = {"partitions": [T0, T1, U0], "require_stable": True}
    assert log.fetched("g", **asked) == {T0: unstable, T1: unstable, U0: -1}
    assert log.fetched("g", require_stable=True) == {T0: unstable}
    log.end(OTHER, commit=True)
    assert log.fetched("g") == {T0: 1}
    log.end(PRODUCER, commit=commit)
    assert log.fetched("g", require_stable=True) == ({T0: 5, T1: 6} if commit else {T0: 1})


def test_a_commit_that_came_later_in_the_log_wins_over_the_transaction() -> None:
    log = Log()
    log.commit("g", {T0: 5}, PRODUCER)
    log.commit("g", {T0: 1})
    log.end(PRODUCER, commit=True)
    assert log.fetched("g") == {T0: 1}


def test_two_transactions_of_one_group_each_keep_it_unstable() -> None:
    log = Log()
    log.commit("g", {T0: 5}, PRODUCER)
    log.commit("g", {T0: 6}, OTHER)
    log.end(OTHER, commit=True)
    assert log.fetched("g", require_stable=True) == {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    log.end(PRODUCER, commit=True)
    assert log.fetched("g", require_stable=True) == {T0: 6}


def test_one_transaction_of_two_groups_ends_in_both() -> None:
    log = Log()
    log.commit("g", {T0: 5}, PRODUCER)
    log.commit("h", {T0: 6}, PRODUCER)
    log.end(PRODUCER, commit=True)
    assert (log.fetched("g"), log.fetched("h")) == ({T0: 5}, {T0: 6})


def test_the_log_folded_at_once_says_the_same() -> None:
    log = Log()
    log.commit("g", {T0: 1, T1: 2, U0: 3})
    log.commit("g", {T0: 5, T1: 6}, PRODUCER)
    log.commit("g", {T1: 7})
    log.append(log.store.delete("g", [U0]).entries)
    log.commit("h", {T0: 8}, OTHER)
    log.end(PRODUCER, commit=True)
    folded = groups_of(fold(log.events))
    assert {tp: v.offset for tp, v in folded["g"].offsets.items()} == log.fetched("g")
    assert log.fetched("g") == {T0: 5, T1: 7}
    assert set(folded) == set(log.store.groups()) == {"g", "h"}


# --- deletion ---------------------------------------------------------------------------------


def test_offsets_of_topics_that_members_read_are_not_deleted() -> None:
    log = Log()
    log.commit("g", {T0: 1, U0: 2})
    outcome = log.store.delete("g", [T0, U0, T1], ["t", "other"])
    read = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert outcome.errors == {T0: read, U0: ErrorCode.NONE, T1: read}
    log.append(outcome.entries)
    assert log.fetched("g") == {T0: 1}


def test_deleting_what_is_not_there_writes_nothing() -> None:
    outcome = Log().store.delete("g", [T0])
    assert (outcome.errors, outcome.entries) == ({T0: ErrorCode.NONE}, ())


def test_a_deleted_offset_does_not_come_back_with_a_transaction() -> None:
    log = Log()
    log.commit("g", {T0: 5, T1: 6}, PRODUCER)
    log.append(log.store.delete("g", [T0]).entries)
    assert log.fetched("g", partitions=[T0], require_stable=True) == {T0: -1}
    log.end(PRODUCER, commit=True)
    assert log.fetched("g") == {T1: 6}


def test_a_group_is_deleted_with_what_is_pending_and_nothing_else() -> None:
    log = Log()
    log.commit("g", {T0: 1, T1: 2})
    log.commit("g", {T0: 3, U0: 4}, PRODUCER)
    log.commit("h", {T0: 9})
    entries = log.store.delete_group("g")
    assert [(e.key.topic, e.key.partition) for e in entries] == [("t", 0), ("t", 1), ("u", 0)]
    log.append(entries)
    log.end(PRODUCER, commit=True)
    assert (log.fetched("g"), log.fetched("h")) == ({}, {T0: 9})
    assert list(log.store.groups()) == ["h"]


def test_offsets_go_with_their_topic() -> None:
    log = Log()
    log.commit("g", {T0: 1, U0: 2})
    log.commit("h", {T0: 3}, PRODUCER)
    for group in ("g", "h"):
        log.append(log.store.delete_topic(group, "t", uuid.uuid4()))
    log.end(PRODUCER, commit=True)
    assert (log.fetched("g"), log.fetched("h")) == ({U0: 2}, {})


def test_offsets_of_topics_that_are_others() -> None:
    """By the id in the record; by the name where it has none. Of several the newest decides."""
    now, before = uuid.UUID(int=1), uuid.UUID(int=2)
    log = Log()

    def commit(group: str, tp: TopicPartition, topic_id: uuid.UUID, producer_id: int = -1) -> None:
        new = {tp: NewOffset(5, topic_id=topic_id)}
        log.append(log.store.commit(group, new, NOW_MS).entries, producer_id)

    commit("g", T0, before)
    commit("g", T1, now)
    commit("g", U0, uuid.UUID(int=3))
    commit("h", T0, before)
    commit("h", T0, now)
    commit("h", T1, ZERO_UUID)
    commit("p", T0, now)
    commit("p", T0, before, PRODUCER)
    gone = [one for group in "ghp" for one in log.store.delete_strangers(group, {"t": now})]
    found = [(e.key.group, TopicPartition(e.key.topic, e.key.partition)) for e in gone]
    assert found == [("g", T0), ("g", U0), ("p", T0)]
    assert {e.value for e in gone} == {None}


# --- expiry -----------------------------------------------------------------------------------


def expired(log: Log, rule: ExpiryRule | None, now_ms: int) -> tuple[set[str], bool]:
    found = log.store.expire("g", rule, now_ms)
    return {f"{e.key.topic}-{e.key.partition}" for e in found.entries}, found.is_group_unused


def test_expiry_by_rule_and_retention() -> None:
    log = Log(retention_ms=DAY_MS)
    log.commit("g", {T0: 1, U0: 2})
    end_ms = NOW_MS + DAY_MS
    assert expired(log, ExpiryRule(), end_ms - 1) == (set(), False)
    assert expired(log, ExpiryRule(), end_ms) == ({"t-0", "u-0"}, True)
    assert expired(log, ExpiryRule(unused_since_ms=NOW_MS + 1), end_ms) == (set(), False)
    assert expired(log, ExpiryRule(subscribed=frozenset("t")), end_ms) == ({"u-0"}, False)
    assert expired(log, None, end_ms) == (set(), False)


def test_a_pending_offset_holds_the_committed_one_and_the_group() -> None:
    log = Log(retention_ms=DAY_MS)
    log.commit("g", {T0: 1, U0: 2})
    log.commit("g", {T0: 5}, PRODUCER)
    end_ms = NOW_MS + DAY_MS
    assert expired(log, ExpiryRule(), end_ms) == ({"u-0"}, False)
    log.append(log.store.delete("g", [T0]).entries)
    assert expired(log, ExpiryRule(), end_ms) == ({"u-0"}, False)
    log.end(PRODUCER, commit=False)
    assert expired(log, ExpiryRule(), end_ms) == ({"u-0"}, True)


def test_a_group_without_offsets_is_unused() -> None:
    assert expired(Log(), None, NOW_MS) == (set(), True)


def test_an_expiry_of_its_own_survives_the_log() -> None:
    log = Log(retention_ms=DAY_MS)
    log.append(log.store.commit("g", {T0: NewOffset(1)}, NOW_MS, retention_ms=60).entries)
    assert expired(log, ExpiryRule(), NOW_MS + 59) == (set(), False)
    assert expired(log, ExpiryRule(), NOW_MS + 60) == ({"t-0"}, True)
