"""The store: what it remembers over a reopening, and what it refuses."""

from __future__ import annotations

import os
import sqlite3
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.metadata import sqlite
from lapse.metadata.sqlite import SqliteStore, look_at_settings
from lapse.metadata.sqlite_schema import SCHEMA_VERSION
from lapse.metadata.store import ALL_BROKERS, TopicRecord
from tests.support.cli.unprivileged import unprivileged
from tests.support.metadata.store_contract import Open, StoreContract, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, lambda: "first")
    yield opened
    opened.close()


class TestContract(StoreContract):
    @pytest.fixture
    def open_store(self, path: Path) -> Iterator[Open]:
        with ExitStack() as closing:

            def opened(new_cluster_id: str) -> SqliteStore:
                store = SqliteStore(path, lambda: new_cluster_id)
                closing.callback(store.close)
                return store

            yield opened


def test_settings_are_looked_at_without_opening(store: SqliteStore, path: Path) -> None:
    store.set_broker_settings(ALL_BROKERS, {"b": "4"})
    store.set_broker_settings("0", {})
    assert look_at_settings(path).brokers == {ALL_BROKERS: {"b": "4"}}


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
        assert version_of(old) == SCHEMA_VERSION == 5
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
