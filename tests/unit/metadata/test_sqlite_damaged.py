"""A byte of the metadata is damaged: nothing is deleted by it, and nobody is let in."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lapse.base.errors import LapseError
from lapse.metadata.sqlite import SEALED, Damaged, SqliteStore, accept_as_it_is, look_at_settings
from tests.support.metadata.store_contract import record

TABLES = {
    "topics": "UPDATE topics SET state = 1",
    "broker_settings": "UPDATE broker_settings SET value = '1'",
    "facts": "UPDATE facts SET value = 'another' WHERE name = 'cluster_id'",
}


def made(path: Path) -> None:
    with closing(SqliteStore(path, lambda: "cluster")) as store:
        store.create_topics(
            [record(f"t{n}", n + 1, **{"retention.ms": "604800000"}) for n in range(9)]
        )
        store.set_broker_settings("", {"log.retention.ms": "604800000"})
        store.set_broker_settings("1", {"log.cleaner.threads": "2"})


def seen(path: Path) -> object:
    with closing(SqliteStore(path, lambda: "another")) as store:
        return (
            store.cluster_id(), store.topics(), store.deletions(), store.broker_settings(),
            store.acls(), store.credentials(), store.client_quotas(),
        )  # fmt: skip


def test_a_damaged_byte_deletes_nothing(
    tmp_path: Path, seed: int, scaled: Callable[[int], int]
) -> None:
    """It is noticed, by whoever opens or looks, or it changes nothing."""
    path, hurt = tmp_path / "whole", tmp_path / "hurt"
    made(path)
    data, before, looked = path.read_bytes(), seen(path), look_at_settings(path)
    used = [at for at, byte in enumerate(data) if byte]
    draw, noticed = random.Random(seed), 0
    for at in draw.sample(used, min(len(used), scaled(6000))):
        damaged = bytearray(data)
        damaged[at] ^= 1 << draw.randrange(8)
        for look, expected in ((look_at_settings, looked), (seen, before)):
            for beside in tmp_path.glob("hurt*"):
                beside.unlink()
            hurt.write_bytes(damaged)
            try:
                found = look(hurt)
            except LapseError:
                noticed += 1
            else:
                assert found == expected, f"byte {at} of {len(data)}"
    assert noticed


@pytest.mark.parametrize("table", sorted(TABLES))
def test_what_is_not_as_it_was_stored_is_accepted_by_a_person_alone(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "store"
    made(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(TABLES[table])
    for look in (seen, look_at_settings) if table != "facts" else (seen,):
        with pytest.raises(Damaged, match=f"{table} are not as they were .* --accept-metadata"):
            look(path)
    assert accept_as_it_is(path) == [table]
    seen(path)
    look_at_settings(path)
    assert accept_as_it_is(path) == []


def test_damage_gets_no_seal_by_a_change(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made(path)
    with closing(SqliteStore(path, lambda: "")) as store:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(TABLES["topics"])
        with pytest.raises(Damaged):
            store.create_topics([record("more")])
        with pytest.raises(Damaged):
            store.topics()
        store.set_broker_settings("2", {"log.cleaner.threads": "3"})  # the others go on


def test_every_table_is_sealed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made(path)
    with closing(sqlite3.connect(path)) as db:
        tables = {
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        assert tables == {*SEALED, "seals"}
        assert {name for (name,) in db.execute("SELECT name FROM seals")} == set(SEALED)
