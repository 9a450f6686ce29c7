"""The store: what it remembers over a reopening, and what it refuses."""

from __future__ import annotations

import os
import sqlite3
import stat
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.metadata import sqlite
from lapse.metadata.sqlite import SCHEMA_VERSION, SqliteStore, look_at_settings
from lapse.metadata.store import ALL_BROKERS, TopicRecord
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import ScramCredential, ScramMechanism
from tests.support.cli.unprivileged import unprivileged


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


def test_only_its_owner_may_read_it(path: Path) -> None:
    """It has credentials: so do its log and what lies beside that, which SQLite makes itself."""
    umask = os.umask(0)
    try:
        store = SqliteStore(path, lambda: "first")
        store.create_topics([record("t")])
        names = [path, *(path.with_name(path.name + beside) for beside in ("-wal", "-shm"))]
        assert [stat.S_IMODE(name.stat().st_mode) for name in names] == [0o600] * 3
        for name in names:  # as earlier versions made them
            name.chmod(0o644)
        again = SqliteStore(path, lambda: "second")
        assert [stat.S_IMODE(name.stat().st_mode) for name in names] == [0o600] * 3
        assert [topic.name for topic in again.topics()] == ["t"]
        again.close()
        store.close()
    finally:
        os.umask(umask)


def test_who_may_not_read_it_is_told_what_to_do(store: SqliteStore, path: Path) -> None:
    store.close()
    refused = pytest.raises(StorageError, match=r"only its owner may read it.*--bootstrap-server")
    with refused, unprivileged(path):
        look_at_settings(path)


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


def test_a_topic_is_changed_in_place(store: SqliteStore, path: Path) -> None:
    topic = record("t", 1, a="1")
    store.create_topics([topic])
    changed = TopicRecord("t", topic.topic_id, 5, {"b": "2"})
    store.change_topic(changed)
    again = SqliteStore(path, str)
    assert list(again.topics()) == [changed]
    again.close()
    store.start_deletion(topic.topic_id)
    with pytest.raises(KafkaError, match="no topic has the id"):
        store.change_topic(changed)
    assert list(store.deletions()) == [changed]


def test_settings_of_brokers_are_replaced_as_a_whole(store: SqliteStore, path: Path) -> None:
    assert store.broker_settings() == {}
    store.set_broker_settings(ALL_BROKERS, {"a": "1", "b": "2"})
    store.set_broker_settings("0", {"a": "3"})
    store.set_broker_settings(ALL_BROKERS, {"b": "4"})
    again = SqliteStore(path, str)
    assert again.broker_settings() == {ALL_BROKERS: {"b": "4"}, "0": {"a": "3"}}
    again.close()
    store.set_broker_settings("0", {})
    assert look_at_settings(path).brokers == {ALL_BROKERS: {"b": "4"}}


BINDING = AclBinding(
    ResourceType.TOPIC,
    PatternType.PREFIXED,
    "t",
    "User:a",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


def test_acls_are_kept_each_once(store: SqliteStore, path: Path) -> None:
    other = replace(BINDING, principal="User:b")
    store.change_acls([BINDING, other], [])
    store.change_acls([BINDING], [])
    again = SqliteStore(path, str)
    assert again.acls() == {BINDING, other}
    again.close()
    store.change_acls([], [BINDING, BINDING])
    assert store.acls() == {other}


def test_credentials_are_set_and_removed_together(store: SqliteStore, path: Path) -> None:
    one, two = (ScramCredential(b"s%d" % n, b"k", b"v", 4096 + n) for n in (1, 2))
    sha = ScramMechanism.SHA_256
    store.change_credentials({("a", sha): one, ("b", sha): one})
    store.change_credentials({("a", sha): two, ("b", sha): None, ("c", sha): None})
    again = SqliteStore(path, str)
    assert again.credentials() == {("a", sha): two}
    again.close()


def test_a_secret_stays_the_same(store: SqliteStore, path: Path) -> None:
    assert store.secret_of("s", lambda: b"first") == b"first"
    again = SqliteStore(path, str)
    assert again.secret_of("s", lambda: b"second") == b"first"
    again.close()


# --- version 1 ------------------------------------------------------------------------------------

# What Lapse wrote before there were settings of brokers, word for word.
VERSION_1 = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    topic_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    overrides TEXT NOT NULL,
    state INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX live_names ON topics (name) WHERE state = 0;
PRAGMA user_version = 1;
INSERT INTO facts VALUES ('cluster_id', 'old'), ('producer_id_next', '77');
INSERT INTO topics VALUES
    ('00000000-0000-0000-0000-000000000001', 'kept', 3, '{"retention.ms": "5"}', 0),
    ('00000000-0000-0000-0000-000000000002', 'going', 1, '{}', 1);
"""


@pytest.fixture
def old(path: Path) -> Path:
    with sqlite3.connect(path) as db:
        db.executescript(VERSION_1)
    db.close()
    return path


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(version)


def test_version_1_is_brought_up_in_place(old: Path) -> None:
    for _ in range(2):  # as it is found, and as it was left
        store = SqliteStore(old, lambda: "new")
        assert store.cluster_id() == "old"
        kept = TopicRecord("kept", uuid.UUID(int=1), 3, {"retention.ms": "5"})
        assert list(store.topics()) == [kept]
        assert [t.name for t in store.deletions()] == ["going"]
        store.close()
        assert version_of(old) == SCHEMA_VERSION == 4
    store = SqliteStore(old, str)
    assert store.allocate_producer_ids(3) == range(77, 80)
    store.set_broker_settings("0", {"a": "1"})
    assert store.broker_settings() == {"0": {"a": "1"}}
    store.close()


def test_an_upgrade_that_fails_leaves_the_old_store(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (sqlite.MIGRATIONS[0], sqlite.MIGRATIONS[1] + "CREATE TABLE topics (a);")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", steps)
        with pytest.raises(StorageError, match="already exists"):
            SqliteStore(old, str)
    assert version_of(old) == 1
    assert look_at_settings(old).topics == {"kept": {"retention.ms": "5"}}
    store = SqliteStore(old, str)
    assert store.broker_settings() == {}
    store.close()


def test_looking_does_not_upgrade(old: Path) -> None:
    found = look_at_settings(old)
    assert (found.topics, found.brokers) == ({"kept": {"retention.ms": "5"}}, {})
    assert version_of(old) == 1
