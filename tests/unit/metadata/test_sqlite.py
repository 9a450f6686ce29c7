"""The store: what it remembers over a reopening, and what it refuses."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.metadata.sqlite import SqliteStore
from lapse.metadata.store import TopicRecord


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, lambda: "first")
    yield opened
    opened.close()


def record(name: str, partitions: int = 1, **overrides: str) -> TopicRecord:
    return TopicRecord(name, uuid.uuid4(), partitions, overrides)


def test_remembers_over_a_reopening(store: SqliteStore, path: Path) -> None:
    topics = [record("b", 3, retention="5"), record("a")]
    store.create_topics(topics)
    store.allocate_producer_ids(10)
    again = SqliteStore(path, lambda: "second")
    assert again.cluster_id() == "first"
    assert again.topics() == sorted(topics, key=lambda t: t.name)
    assert again.allocate_producer_ids(5) == range(10, 15)
    again.close()


def test_syncs_every_transaction(store: SqliteStore) -> None:
    (level,) = store._db.execute("PRAGMA synchronous").fetchone()
    (mode,) = store._db.execute("PRAGMA journal_mode").fetchone()
    assert (level, mode) == (2, "wal")


def test_a_name_is_taken_until_its_deletion_begins(store: SqliteStore) -> None:
    first, second = record("t"), record("t")
    store.create_topics([first])
    with pytest.raises(KafkaError) as refused:
        store.create_topics([record("other"), second])
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert [t.name for t in store.topics()] == ["t"]  # all or none
    store.start_deletion(first.topic_id)
    store.create_topics([second])
    assert (list(store.topics()), list(store.deletions())) == ([second], [first])
    store.finish_deletion(first.topic_id)
    assert not store.deletions()


def test_what_is_not_there_cannot_be_deleted(store: SqliteStore) -> None:
    topic = record("t")
    store.create_topics([topic])
    store.finish_deletion(topic.topic_id)  # not begun: nothing happens
    assert store.topics() == [topic]
    store.start_deletion(topic.topic_id)
    with pytest.raises(KafkaError, match="no topic has the id"):
        store.start_deletion(topic.topic_id)


def test_a_newer_schema_is_refused(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="schema version 99"):
        SqliteStore(path, str)


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_bytes(b"not a database, by any means" * 100)
    with pytest.raises(StorageError, match=str(path)):
        SqliteStore(path, str)
