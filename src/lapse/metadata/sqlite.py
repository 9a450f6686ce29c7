"""`MetadataStore` of one node: a SQLite file beside its logs.

Write-ahead log and synchronous=FULL: what a call reported done survives a power cut. One
connection behind a lock; the calls are few and short.

The file carries its schema version. An older one is brought up to ours in place, in one
transaction; a newer one is refused, never guessed at.

SQLite does not notice a byte that is damaged. One may be a retention, or whether a topic is being
deleted; so each table has a seal over all its rows, which whoever reads or changes it checks.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import make_private
from lapse.metadata.features import ALL, Levels, decoded_levels, encoded_levels
from lapse.metadata.sqlite_schema import DELETING, LIVE, MIGRATIONS, SCHEMA_VERSION
from lapse.metadata.store import (
    Entity,
    TopicRecord,
    no_topic,
    require_next,
    require_same,
    topic_exists,
)
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import Credentials, ScramCredential, ScramMechanism

STORE = "lapse-metadata.sqlite"  # its name in a data directory
_SETTINGS_FROM, _SEALED_FROM = 2, 5
_DISKS = "log_directories"
_LEVELS = "feature_levels"  # a fact; a store from before there were any goes by the newest
_FACTS, _TOPICS_TABLE, _SETTINGS_TABLE = "facts", "topics", "broker_settings"
_ACLS, _CREDENTIALS, _QUOTAS = "acls", "scram_credentials", "client_quotas"
SEALED = (_FACTS, _TOPICS_TABLE, _SETTINGS_TABLE, _ACLS, _CREDENTIALS, _QUOTAS)
_SEAL_BYTES = 16
# So few pages of the write-ahead log are brought into the file at a time, and so many changes have
# room in it from the beginning: a topic can be deleted on a disk that is full.
_LOGGED_PAGES, _KEPT_CHANGES = 16, 4
_BROKEN = (sqlite3.Error, UnicodeDecodeError)  # SQLite's own words may have what is damaged
_ACL_COLUMNS = ", ".join(AclBinding.__dataclass_fields__)  # of the table and of the class


class SqliteStore:
    """Metadata in one file.

    Args:
        path: the file; created if missing.
        new_cluster_id: gives a cluster id if the store is new.
        first_levels: feature levels if the store is new.
    """

    def __init__(
        self,
        path: Path,
        new_cluster_id: Callable[[], str],
        first_levels: Levels = ALL,
    ) -> None:
        self.path, self._first_levels = path, first_levels
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
        self._db.execute(f"PRAGMA wal_autocheckpoint = {_LOGGED_PAGES}")
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
                self._set(_LEVELS, encoded_levels(self._first_levels).decode())
            if version < _SEALED_FROM:
                _seal(self._db, SEALED)
            self._db.execute("COMMIT")
        with self._transaction():
            for table in SEALED:
                self._rows(table)
        self._keep_room()

    def _keep_room(self) -> None:
        """Have room in the write-ahead log, which who closed the store last has removed."""
        try:
            for n in range(_KEPT_CHANGES):
                with self._changing(_FACTS):
                    self._set("room", str(n))
            with self._storage():
                self._bring_in()
        except StorageError as e:  # full already: it is as well opened without
            if not _is_full(e):
                raise

    def cluster_id(self) -> str:
        with self._transaction():
            return self._get("cluster_id")

    def levels(self) -> Levels:
        with self._transaction():
            return _levels_of(self._rows(_FACTS), self.path)

    def set_levels(self, levels: Levels) -> None:
        with self._changing(_FACTS):
            require_next(_levels_of(self._rows(_FACTS), self.path), levels)
            self._set(_LEVELS, encoded_levels(levels).decode())

    def topics(self) -> Sequence[TopicRecord]:
        return self._in_state(LIVE)

    def deletions(self) -> Sequence[TopicRecord]:
        return self._in_state(DELETING)

    def finish_departure(self, topic_id: uuid.UUID, number: int) -> None:
        """Nothing: what is on a broker that is alone does not move."""

    def _in_state(self, state: int) -> Sequence[TopicRecord]:
        with self._transaction():
            rows = self._rows(_TOPICS_TABLE)
        found = [
            TopicRecord(name, uuid.UUID(topic_id), partitions, json.loads(overrides))
            for topic_id, name, partitions, overrides, state_of in rows
            if state_of == state
        ]
        return sorted(found, key=lambda topic: topic.name)

    def create_topics(self, topics: Sequence[TopicRecord]) -> None:
        with self._changing(_TOPICS_TABLE):
            for topic in topics:
                try:
                    self._db.execute(
                        "INSERT INTO topics VALUES (?, ?, ?, ?, ?)",
                        (
                            str(topic.topic_id),
                            topic.name,
                            topic.partitions,
                            json.dumps(dict(topic.overrides)),
                            LIVE,
                        ),
                    )
                except sqlite3.IntegrityError:
                    raise topic_exists(topic.name) from None

    def change_topic(self, topic: TopicRecord, instead_of: TopicRecord) -> None:
        with self._changing(_TOPICS_TABLE):
            stored = {row[0]: (row[2], json.loads(row[3])) for row in self._rows(_TOPICS_TABLE)}
            done = self._db.execute(
                "UPDATE topics SET partitions = ?, overrides = ? WHERE topic_id = ? AND state = ?",
                (topic.partitions, json.dumps(dict(topic.overrides)), str(topic.topic_id), LIVE),
            )
            if done.rowcount != 1:
                raise no_topic(topic.topic_id)
            was = (instead_of.partitions, dict(instead_of.overrides))
            require_same(f"topic {topic.name}", stored[str(topic.topic_id)], was)

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        self._with_room(self._start_deletion, topic_id)

    def _start_deletion(self, topic_id: uuid.UUID) -> None:
        with self._changing(_TOPICS_TABLE):
            done = self._db.execute(
                "UPDATE topics SET state = ? WHERE topic_id = ? AND state = ?",
                (DELETING, str(topic_id), LIVE),
            )
            if done.rowcount != 1:
                raise no_topic(topic_id)

    def finish_deletion(self, topic_id: uuid.UUID) -> None:
        self._with_room(self._finish_deletion, topic_id)

    def _finish_deletion(self, topic_id: uuid.UUID) -> None:
        with self._changing(_TOPICS_TABLE):
            self._db.execute(
                "DELETE FROM topics WHERE topic_id = ? AND state = ?", (str(topic_id), DELETING)
            )

    def _with_room(self, change: Callable[[uuid.UUID], None], topic_id: uuid.UUID) -> None:
        """Make a change that has a full disk emptied: where the log has no room, from its start."""
        try:
            change(topic_id)
        except StorageError as e:
            if not _is_full(e):
                raise
            with self._lock, self._storage():
                self._bring_in()
            change(topic_id)

    def _bring_in(self) -> None:
        """Bring the write-ahead log into the file; what comes next overwrites what is in it."""
        self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        with self._transaction():
            return _settings_of(self._rows(_SETTINGS_TABLE))

    def set_broker_settings(
        self, broker: str, settings: Mapping[str, str], instead_of: Mapping[str, str] | None = None
    ) -> None:
        with self._changing(_SETTINGS_TABLE):
            if instead_of is not None:
                stored = _settings_of(self._rows(_SETTINGS_TABLE)).get(broker, {})
                require_same("settings of brokers", stored, dict(instead_of))
            self._db.execute("DELETE FROM broker_settings WHERE broker = ?", (broker,))
            self._db.executemany(
                "INSERT INTO broker_settings VALUES (?, ?, ?)",
                [(broker, name, value) for name, value in settings.items()],
            )

    def acls(self) -> frozenset[AclBinding]:
        with self._transaction():
            rows = self._rows(_ACLS)
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
        with self._changing(_ACLS):
            self._db.executemany(
                f"DELETE FROM acls WHERE ({_ACL_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                map(_acl_row, removed),
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)", map(_acl_row, added)
            )

    def credentials(self) -> Credentials:
        with self._transaction():
            rows = self._rows(_CREDENTIALS)
        return {
            (user, ScramMechanism(mechanism)): ScramCredential(*rest)
            for user, mechanism, *rest in rows
        }

    def change_credentials(
        self, changes: Mapping[tuple[str, ScramMechanism], ScramCredential | None]
    ) -> None:
        with self._changing(_CREDENTIALS):
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
        with self._changing(_FACTS):
            row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            if row is None:
                self._set(name, fresh().hex())
            return bytes.fromhex(self._get(name))

    def disks(self) -> frozenset[str]:
        """Ids of the log directories that this broker had when it last started."""
        with self._transaction():
            found = [value for name, value in self._rows(_FACTS) if name == _DISKS]
        return frozenset(json.loads(found[0])) if found else frozenset()

    def keep_disks(self, ids: AbstractSet[str]) -> None:
        """Remember those that it has, once all is noted that follows from those that it lacks."""
        if ids != self.disks():
            with self._changing(_FACTS):
                self._set(_DISKS, json.dumps(sorted(ids)))

    def client_quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        with self._transaction():
            return _quotas_of(self._rows(_QUOTAS))

    def set_client_quotas(
        self,
        changed: Mapping[Entity, Mapping[str, float]],
        instead_of: Mapping[Entity, Mapping[str, float]] | None = None,
    ) -> None:
        with self._changing(_QUOTAS):
            stored = _quotas_of(self._rows(_QUOTAS))
            for entity, was in (instead_of or {}).items():
                require_same("client quotas", stored.get(entity, {}), dict(was))
            for entity, values in changed.items():
                key = json.dumps(entity)
                self._db.execute("DELETE FROM client_quotas WHERE entity = ?", (key,))
                self._db.executemany(
                    "INSERT INTO client_quotas VALUES (?, ?, ?)",
                    [(key, name, value) for name, value in values.items()],
                )

    def allocate_producer_ids(self, count: int) -> range:
        with self._changing(_FACTS):
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

    def _rows(self, table: str) -> list[tuple[Any, ...]]:
        """All of a table, as it was stored; raises Damaged."""
        return _sealed_rows(self._db, table, self.path)

    @contextmanager
    def _changing(self, table: str) -> Iterator[None]:
        """Change a table; nothing that is damaged gets a new seal."""
        with self._transaction():
            self._rows(table)
            yield
            _seal(self._db, [table])

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
        except _BROKEN as e:
            raise StorageError(f"{self.path}: {e}") from e


def _is_full(error: StorageError) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode == sqlite3.SQLITE_FULL


# --- seals ----------------------------------------------------------------------------------------


class Damaged(StorageError):
    """A table is not as it was stored."""

    is_of_disk = False


def _all_rows(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """From the table itself: an index may be damaged, too."""
    columns = len(db.execute(f"PRAGMA table_info({table})").fetchall())
    order = ", ".join(map(str, range(1, columns + 1)))
    return db.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY {order}").fetchall()  # noqa: S608


def _is_there(db: sqlite3.Connection, table: str) -> bool:
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())


def _seal_of(rows: list[tuple[Any, ...]]) -> str:
    data = repr(rows).encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=_SEAL_BYTES).hexdigest()


def _seal(db: sqlite3.Connection, tables: Iterable[str]) -> None:
    for table in tables:
        db.execute(
            "INSERT INTO seals VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seal = excluded.seal",
            (table, _seal_of(_all_rows(db, table))),
        )


def _sealed_rows(db: sqlite3.Connection, table: str, path: Path) -> list[tuple[Any, ...]]:
    rows = _all_rows(db, table)
    kept = db.execute("SELECT seal FROM seals WHERE name = ?", (table,)).fetchone()
    if kept is None or kept[0] != _seal_of(rows):
        raise Damaged(
            f"{path}: {table} are not as they were stored; a byte is damaged. Put the file back "
            f"from a copy, or have what it says now accepted: lapse repair {path.parent} "
            "--accept-metadata"
        )
    return rows


def damaged_tables(path: Path) -> list[str]:
    """Which are not as they were stored; changes nothing. Raises StorageError."""
    with _looking(path) as db:
        return _damaged(db, path) if _is_there(db, "seals") else []


def accept_as_it_is(path: Path) -> list[str]:
    """Seal anew what is not as it was stored, and name it: a person says that it is right."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            accepted = _damaged(db, path) if _is_there(db, "seals") else []
            _seal(db, accepted)
            db.execute("REINDEX")
            db.execute("COMMIT")
            return accepted
    except _BROKEN as e:
        raise StorageError(f"{path}: {e}") from e


def _damaged(db: sqlite3.Connection, path: Path) -> list[str]:
    found = []
    for table in SEALED:
        try:
            _sealed_rows(db, table, path)
        except Damaged:
            found.append(table)
    return found


# --- looking --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in a store, as text: of each topic, and of brokers by id; what caps them."""

    topics: Mapping[str, Mapping[str, str]]
    brokers: Mapping[str, Mapping[str, str]]
    levels: Levels


def look_at_settings(path: Path) -> Settings:
    """A store's settings, read without changing or creating a file, also beside a live broker."""
    with _looking(path) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version >= _SEALED_FROM or _is_there(db, "seals"):  # the version may be damaged
            rows = _sealed_rows(db, _TOPICS_TABLE, path)
            settings = _sealed_rows(db, _SETTINGS_TABLE, path)
            levels = _levels_of(_sealed_rows(db, _FACTS, path), path)
        else:
            levels = ALL
            rows = _all_rows(db, _TOPICS_TABLE)
            settings = _all_rows(db, _SETTINGS_TABLE) if version >= _SETTINGS_FROM else []
        topics = {row[1]: json.loads(row[3]) for row in rows if row[4] == LIVE}
        return Settings(topics, _settings_of(settings), levels)


@contextmanager
def _looking(path: Path) -> Iterator[sqlite3.Connection]:
    """A store as of one moment.

    One that was closed has no write-ahead log beside it; telling SQLite that no process writes
    then keeps it from making one.
    """
    wal = path.with_name(path.name + "-wal")
    mode = "mode=ro" if wal.exists() else "immutable=1"
    address = f"{path.resolve().as_uri()}?{mode}"
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            db.execute("BEGIN")
            yield db
    except _BROKEN as e:
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


def _levels_of(facts: list[tuple[Any, ...]], path: Path) -> Levels:
    kept = dict(facts).get(_LEVELS)
    return ALL if kept is None else decoded_levels(kept, str(path))


def _settings_of(rows: list[tuple[Any, ...]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for broker, name, value in rows:
        found.setdefault(broker, {})[name] = value
    return found


def _quotas_of(rows: list[tuple[Any, ...]]) -> dict[Entity, dict[str, float]]:
    found: dict[Entity, dict[str, float]] = {}
    for entity, name, value in rows:
        parts = tuple((kind, who) for kind, who in json.loads(entity))
        found.setdefault(parts, {})[name] = value
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
