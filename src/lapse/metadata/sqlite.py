"""`MetadataStore` of one node: a SQLite file beside its logs.

Write-ahead log and synchronous=FULL: what a call reported done survives a power cut. One
connection behind a lock; the calls are few and short.

The file carries its schema version. An older one is brought up to ours in place, in one
transaction; a newer one is refused, never guessed at.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.metadata.store import TopicRecord

STORE = "lapse-metadata.sqlite"  # its name in a data directory
_LIVE, _DELETING = 0, 1

_TOPICS = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    topic_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    overrides TEXT NOT NULL,
    state INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX live_names ON topics (name) WHERE state = {_LIVE};
"""
_BROKER_SETTINGS = """
CREATE TABLE broker_settings (
    broker TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (broker, name)
) WITHOUT ROWID;
"""
# What brings a store from each version to the next; a new one, whose version is 0, gets them all.
MIGRATIONS = (_TOPICS, _BROKER_SETTINGS)
SCHEMA_VERSION = len(MIGRATIONS)
_SETTINGS_FROM = 2


class SqliteStore:
    """Metadata in one file.

    Args:
        path: the file; created if missing.
        new_cluster_id: gives a cluster id if the store is new.
    """

    def __init__(self, path: Path, new_cluster_id: Callable[[], str]) -> None:
        self.path = path
        self._lock = threading.Lock()
        with self._storage():
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with self._storage():
                self._prepare(new_cluster_id)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, new_cluster_id: Callable[[], str]) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise ConfigError(
                f"{self.path}: schema version {version}; this Lapse knows up to {SCHEMA_VERSION}"
            )
        if version < SCHEMA_VERSION:
            steps = "".join(MIGRATIONS[version:])
            self._db.executescript(
                f"BEGIN IMMEDIATE;{steps}PRAGMA user_version = {SCHEMA_VERSION};"
            )
            if version == 0:
                self._set("cluster_id", new_cluster_id())
                self._set("producer_id_next", "0")
            self._db.execute("COMMIT")

    def cluster_id(self) -> str:
        with self._transaction():
            return self._get("cluster_id")

    def topics(self) -> Sequence[TopicRecord]:
        return self._in_state(_LIVE)

    def deletions(self) -> Sequence[TopicRecord]:
        return self._in_state(_DELETING)

    def _in_state(self, state: int) -> Sequence[TopicRecord]:
        with self._transaction():
            rows = self._db.execute(
                "SELECT name, topic_id, partitions, overrides FROM topics"
                " WHERE state = ? ORDER BY name",
                (state,),
            ).fetchall()
        return [
            TopicRecord(name, uuid.UUID(topic_id), partitions, json.loads(overrides))
            for name, topic_id, partitions, overrides in rows
        ]

    def create_topics(self, topics: Sequence[TopicRecord]) -> None:
        with self._transaction():
            for topic in topics:
                try:
                    self._db.execute(
                        "INSERT INTO topics VALUES (?, ?, ?, ?, ?)",
                        (
                            str(topic.topic_id),
                            topic.name,
                            topic.partitions,
                            json.dumps(dict(topic.overrides)),
                            _LIVE,
                        ),
                    )
                except sqlite3.IntegrityError:
                    raise KafkaError(
                        ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} already exists"
                    ) from None

    def change_topic(self, topic: TopicRecord) -> None:
        with self._transaction():
            done = self._db.execute(
                "UPDATE topics SET partitions = ?, overrides = ? WHERE topic_id = ? AND state = ?",
                (topic.partitions, json.dumps(dict(topic.overrides)), str(topic.topic_id), _LIVE),
            )
            if done.rowcount != 1:
                raise _no_topic(topic.topic_id)

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        with self._transaction():
            done = self._db.execute(
                "UPDATE topics SET state = ? WHERE topic_id = ? AND state = ?",
                (_DELETING, str(topic_id), _LIVE),
            )
            if done.rowcount != 1:
                raise _no_topic(topic_id)

    def finish_deletion(self, topic_id: uuid.UUID) -> None:
        with self._transaction():
            self._db.execute(
                "DELETE FROM topics WHERE topic_id = ? AND state = ?", (str(topic_id), _DELETING)
            )

    def broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        with self._transaction():
            return _settings_in(self._db)

    def set_broker_settings(self, broker: str, settings: Mapping[str, str]) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM broker_settings WHERE broker = ?", (broker,))
            self._db.executemany(
                "INSERT INTO broker_settings VALUES (?, ?, ?)",
                [(broker, name, value) for name, value in settings.items()],
            )

    def allocate_producer_ids(self, count: int) -> range:
        with self._transaction():
            start = int(self._get("producer_id_next"))
            self._set("producer_id_next", str(start + count))
        return range(start, start + count)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _get(self, name: str) -> str:
        (value,) = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(value)

    def _set(self, name: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO facts VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._storage():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _storage(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            raise StorageError(f"{self.path}: {e}") from e


@dataclass(frozen=True, slots=True)
class Settings:
    """What a store says of settings, as text: of each topic, and of brokers by id."""

    topics: Mapping[str, Mapping[str, str]]
    brokers: Mapping[str, Mapping[str, str]]


def look_at_settings(path: Path) -> Settings:
    """A store's settings, read without changing or creating a file, also beside a live broker.

    A store that was closed has no write-ahead log beside it; telling SQLite that nobody writes
    then keeps it from making one.
    """
    wal = path.with_name(path.name + "-wal")
    mode = "mode=ro" if wal.exists() else "immutable=1"
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
        try:
            rows = db.execute("SELECT name, overrides FROM topics WHERE state = ?", (_LIVE,))
            topics = {name: json.loads(overrides) for name, overrides in rows}
            (version,) = db.execute("PRAGMA user_version").fetchone()
            return Settings(topics, _settings_in(db) if version >= _SETTINGS_FROM else {})
        finally:
            db.close()
    except sqlite3.Error as e:
        raise StorageError(f"looking at {path}: {e}") from e


def _settings_in(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    rows = db.execute("SELECT broker, name, value FROM broker_settings ORDER BY broker, name")
    for broker, name, value in rows:
        found.setdefault(broker, {})[name] = value
    return found


def _no_topic(topic_id: uuid.UUID) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
