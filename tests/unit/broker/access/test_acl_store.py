"""ACLs and credentials: durable before they are in force, in force at the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.broker.access.acl_store import AUTHORIZERS, Access
from lapse.broker.logs.disk import DiskThreads
from lapse.metadata.sqlite import SqliteStore
from lapse.security.acls import AclFilter, Operation, ResourceType
from lapse.security.authorizer import AllowAll, RequestContext
from lapse.security.scram import ScramCredential, ScramMechanism
from tests.support.broker.secured import allow

ALICE = RequestContext("User:alice", "127.0.0.1")
BINDING = allow(Operation.READ, ResourceType.TOPIC, "t")
KEPT = ScramCredential(b"salt", b"stored", b"server", 4096)
WHO = ("alice", ScramMechanism.SHA_256)


class Failing(SqliteStore):
    """A store whose disk is full once it is told so."""

    is_full = False

    def _transaction(self):  # type: ignore[no-untyped-def]
        if self.is_full:
            raise StorageError("disk full")
        return super()._transaction()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Failing]:
    opened = Failing(tmp_path / "store", str)
    yield opened
    opened.close()


async def access(store: SqliteStore, **settings: str) -> Access:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    made = Access(store, DiskThreads("test"), broker_config(given).security)
    await made.load()
    return made


def may_read(found: Access) -> bool:
    return found.authorizer.authorize(ALICE, Operation.READ, ResourceType.TOPIC, "t")


@pytest.mark.parametrize("name", AUTHORIZERS)
async def test_acls_are_in_force_and_outlive_a_restart(store: Failing, name: str) -> None:
    first = await access(store, authorizer_class_name=name)
    assert not may_read(first)
    assert (await first.create_acls([BINDING])).errors == (None,)
    assert may_read(first)
    again = await access(store, authorizer_class_name=name)
    assert may_read(again)
    assert again.describe_acls(AclFilter()) == (BINDING,)
    assert (await again.delete_acls([AclFilter()])).results == ((BINDING,),)
    assert not may_read(again)
    assert store.acls() == frozenset()


async def test_what_is_not_durable_is_not_in_force(store: Failing) -> None:
    found = await access(store, authorizer_class_name=AUTHORIZERS[0])
    store.is_full = True
    with pytest.raises(KafkaError) as refused:
        await found.create_acls([BINDING])
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not may_read(found)
    with pytest.raises(KafkaError):
        await found.change_credentials({WHO: KEPT})
    assert found.credential(WHO[1], WHO[0]) is None


async def test_without_an_authorizer_there_are_no_acls(store: Failing) -> None:
    found = await access(store)
    assert isinstance(found.authorizer, AllowAll)
    for call in (found.create_acls([BINDING]), found.delete_acls([AclFilter()])):
        with pytest.raises(KafkaError) as refused:
            await call
        assert refused.value.code == ErrorCode.SECURITY_DISABLED
    with pytest.raises(KafkaError, match="No Authorizer is configured"):
        found.describe_acls(AclFilter())


async def test_credentials_and_those_of_nobody_stay_the_same(store: Failing) -> None:
    first = await access(store)
    await first.change_credentials({WHO: KEPT})
    again = await access(store)
    assert again.credential(WHO[1], WHO[0]) == KEPT
    assert again.unknown == first.unknown
    assert len(again.unknown.key) == 32
    await again.change_credentials({WHO: None})
    assert again.credential(WHO[1], WHO[0]) is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"authorizer_class_name": "com.example.Mine"}, r"^authorizer\.class\.name=com"),
        ({"super_users": "alice"}, r"^super\.users:"),
    ],
)
async def test_what_is_wrong_is_named(store: Failing, settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        await access(store, **settings)
