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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import make_private
from lapse.metadata.store import Entity, TopicRecord, no_topic, topic_exists
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import Credentials, ScramCredential, ScramMechanism

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
_SECURITY = """
CREATE TABLE acls (
    resource_type INTEGER NOT NULL,
    pattern_type INTEGER NOT NULL,
    name TEXT NOT NULL,
    principal TEXT NOT NULL,
    host TEXT NOT NULL,
    operation INTEGER NOT NULL,
    permission INTEGER NOT NULL,
    PRIMARY KEY (resource_type, pattern_type, name, principal, host, operation, permission)
) WITHOUT ROWID;
CREATE TABLE scram_credentials (
    user TEXT NOT NULL,
    mechanism INTEGER NOT NULL,
    salt BLOB NOT NULL,
    stored_key BLOB NOT NULL,
    server_key BLOB NOT NULL,
    iterations INTEGER NOT NULL,
    PRIMARY KEY (user, mechanism)
) WITHOUT ROWID;
"""
_CLIENT_QUOTAS = """
CREATE TABLE client_quotas (
    entity TEXT NOT NULL,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (entity, name)
) WITHOUT ROWID;
"""
# What brings a store from each version to the next; a new one, whose version is 0, gets them all.
MIGRATIONS = (_TOPICS, _BROKER_SETTINGS, _SECURITY, _CLIENT_QUOTAS)
SCHEMA_VERSION = len(MIGRATIONS)
_SETTINGS_FROM = 2
_ACL_COLUMNS = ", ".join(AclBinding.__dataclass_fields__)  # of the table and of the class


class SqliteStore:
    """Metadata in one file.

    Args:
        path: the file; created if missing.
        new_cluster_id: gives a cluster id if the store is new.
    """

    def __init__(self, path: Path, new_cluster_id: Callable[[], str]) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._make_private()
        with self._storage():
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with self._storage():
                self._prepare(new_cluster_id)
        except BaseException:
            self._db.close()
            raise

    def _make_private(self) -> None:
        """It has credentials; SQLite gives what it makes beside it the same mode."""
        make_private(self.path)
        for beside in ("-wal", "-shm"):
            path = self.path.with_name(self.path.name + beside)
            if path.exists():
                make_private(path)

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

    def finish_departure(self, topic_id: uuid.UUID, number: int) -> None:
        """Nothing: what is on a broker that is alone does not move."""

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
                    raise topic_exists(topic.name) from None

    def change_topic(self, topic: TopicRecord) -> None:
        with self._transaction():
            done = self._db.execute(
                "UPDATE topics SET partitions = ?, overrides = ? WHERE topic_id = ? AND state = ?",
                (topic.partitions, json.dumps(dict(topic.overrides)), str(topic.topic_id), _LIVE),
            )
            if done.rowcount != 1:
                raise no_topic(topic.topic_id)

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        with self._transaction():
            done = self._db.execute(
                "UPDATE topics SET state = ? WHERE topic_id = ? AND state = ?",
                (_DELETING, str(topic_id), _LIVE),
            )
            if done.rowcount != 1:
                raise no_topic(topic_id)

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

    def acls(self) -> frozenset[AclBinding]:
        with self._transaction():
            rows = self._db.execute(f"SELECT {_ACL_COLUMNS} FROM acls").fetchall()  # noqa: S608
        return frozenset(
            AclBinding(
                ResourceType(resource_type),
                PatternType(pattern_type),
                name,
                principal,
                host,
                Operation(operation),
                Permission(permission),
            )
            for resource_type, pattern_type, name, principal, host, operation, permission in rows
        )

    def change_acls(self, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> None:
        with self._transaction():
            self._db.executemany(
                f"DELETE FROM acls WHERE ({_ACL_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                map(_acl_row, removed),
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)", map(_acl_row, added)
            )

    def credentials(self) -> Credentials:
        with self._transaction():
            rows = self._db.execute("SELECT * FROM scram_credentials").fetchall()
        return {
            (user, ScramMechanism(mechanism)): ScramCredential(*rest)
            for user, mechanism, *rest in rows
        }

    def change_credentials(
        self, changes: Mapping[tuple[str, ScramMechanism], ScramCredential | None]
    ) -> None:
        with self._transaction():
            for (user, mechanism), c in changes.items():
                self._db.execute(
                    "DELETE FROM scram_credentials WHERE user = ? AND mechanism = ?",
                    (user, int(mechanism)),
                )
                if c is not None:
                    self._db.execute(
                        "INSERT INTO scram_credentials VALUES (?, ?, ?, ?, ?, ?)",
                        (user, int(mechanism), c.salt, c.stored_key, c.server_key, c.iterations),
                    )

    def secret_of(self, name: str, fresh: Callable[[], bytes]) -> bytes:
        with self._transaction():
            row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            if row is None:
                self._set(name, fresh().hex())
            return bytes.fromhex(self._get(name))

    def client_quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        found: dict[Entity, dict[str, float]] = {}
        with self._transaction():
            rows = self._db.execute("SELECT entity, name, value FROM client_quotas").fetchall()
        for entity, name, value in rows:
            parts = tuple((kind, who) for kind, who in json.loads(entity))
            found.setdefault(parts, {})[name] = value
        return found

    def set_client_quotas(self, changed: Mapping[Entity, Mapping[str, float]]) -> None:
        with self._transaction():
            for entity, values in changed.items():
                key = json.dumps(entity)
                self._db.execute("DELETE FROM client_quotas WHERE entity = ?", (key,))
                self._db.executemany(
                    "INSERT INTO client_quotas VALUES (?, ?, ?)",
                    [(key, name, value) for name, value in values.items()],
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
    """The settings in a store, as text: of each topic, and of brokers by id."""

    topics: Mapping[str, Mapping[str, str]]
    brokers: Mapping[str, Mapping[str, str]]


def look_at_settings(path: Path) -> Settings:
    """A store's settings, read without changing or creating a file, also beside a live broker.

    A store that was closed has no write-ahead log beside it; telling SQLite that no process writes
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
        if _is_forbidden(path):
            raise StorageError(
                f"looking at {path}: only its owner may read it, for it has credentials: run "
                "this as that user, or ask the broker with --bootstrap-server"
            ) from e
        raise StorageError(f"looking at {path}: {e}") from e


def _is_forbidden(path: Path) -> bool:
    try:
        path.open("rb").close()
    except OSError as e:
        return isinstance(e, PermissionError)
    return False


def _settings_in(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    rows = db.execute("SELECT broker, name, value FROM broker_settings ORDER BY broker, name")
    for broker, name, value in rows:
        found.setdefault(broker, {})[name] = value
    return found


def _acl_row(binding: AclBinding) -> tuple[object, ...]:
    return (
        int(binding.resource_type),
        int(binding.pattern_type),
        binding.name,
        binding.principal,
        binding.host,
        int(binding.operation),
        int(binding.permission),
    )
