"""AlterClientQuotas and DescribeClientQuotas: what is set, over a restart, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.limits.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from lapse.client.connection import BrokerConnection
from lapse.metadata.store import Entity
from lapse.wire.schema import alter_client_quotas as alters
from lapse.wire.schema import describe_client_quotas as describes
from tests.support.broker.running import connect, running_node

ALICE: Entity = ((USER, "alice"),)
ALICES_CONSOLE: Entity = ((CLIENT_ID, "console"), (USER, "alice"))
EVERYBODY: Entity = ((USER, None),)


async def alter(
    connection: BrokerConnection, entity: Entity, *, validate_only: bool = False,
    **ops: float | None,
) -> alters.EntryResult:  # fmt: skip
    entry = alters.EntryData(
        entity=tuple(alters.EntityData(entity_type=k, entity_name=n) for k, n in entity),
        ops=tuple(
            alters.OpData(key=key, value=value or 0, remove=value is None)
            for key, value in ops.items()
        ),
    )
    request = alters.AlterClientQuotasRequest(entries=(entry,), validate_only=validate_only)
    response = await connection.request(request, alters.AlterClientQuotasResponse)
    [result] = response.entries
    return result


async def describe(
    connection: BrokerConnection, *components: tuple[str, int, str | None], strict: bool = False
) -> describes.DescribeClientQuotasResponse:
    request = describes.DescribeClientQuotasRequest(
        components=tuple(
            describes.ComponentData(entity_type=kind, match_type=how, match=match)
            for kind, how, match in components
        ),
        strict=strict,
    )
    return await connection.request(request, describes.DescribeClientQuotasResponse)


def told(response: describes.DescribeClientQuotasResponse) -> dict[Entity, dict[str, float]]:
    assert response.entries is not None
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries
    }


async def test_quotas_are_set_kept_and_removed(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        ops = {PRODUCER_BYTE_RATE: 1000.0, REQUEST_PERCENTAGE: 12.5}
        assert (await alter(connection, ALICE, **ops)).error_code == 0
        assert (await alter(connection, EVERYBODY, **{CONSUMER_BYTE_RATE: 5.0})).error_code == 0
        dry = await alter(connection, ALICE, validate_only=True, **{PRODUCER_BYTE_RATE: 1.0})
        assert dry.error_code == 0
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert told(await describe(connection)) == {
            EVERYBODY: {CONSUMER_BYTE_RATE: 5},
            ALICE: {PRODUCER_BYTE_RATE: 1000, REQUEST_PERCENTAGE: 12.5},
        }
        await alter(connection, ALICE, **{PRODUCER_BYTE_RATE: None})
        await alter(connection, EVERYBODY, **{CONSUMER_BYTE_RATE: None})
        assert told(await describe(connection)) == {ALICE: {REQUEST_PERCENTAGE: 12.5}}


REFUSED: dict[str, tuple[Entity, dict[str, float]]] = {
    "nobody": ((), {PRODUCER_BYTE_RATE: 1}),
    "an unknown type": ((("group", "g"),), {PRODUCER_BYTE_RATE: 1}),
    "an empty name": (((USER, ""),), {PRODUCER_BYTE_RATE: 1}),
    "one type twice": (((USER, "a"), (USER, "b")), {PRODUCER_BYTE_RATE: 1}),
    "an address with a user": (((IP, "1.2.3.4"), (USER, "a")), {PRODUCER_BYTE_RATE: 1}),
    "no address": (((IP, "not an address"),), {CONNECTION_CREATION_RATE: 1}),
    "an empty address": (((IP, ""),), {CONNECTION_CREATION_RATE: 1}),
    "a client's quota of an address": (((IP, "1.2.3.4"),), {CONTROLLER_MUTATION_RATE: 1}),
    "an address's quota of a client": (ALICE, {CONNECTION_CREATION_RATE: 1}),
    "half a connection": (((IP, "1.2.3.4"),), {CONNECTION_CREATION_RATE: 0.5}),
    "no connection": (((IP, "1.2.3.4"),), {CONNECTION_CREATION_RATE: 0}),
    "too many connections": (((IP, None),), {CONNECTION_CREATION_RATE: 1 << 31}),
    "no partition": (ALICE, {CONTROLLER_MUTATION_RATE: 0}),
    "an unknown key": (ALICE, {"bytes": 1}),
    "nothing": (ALICE, {PRODUCER_BYTE_RATE: -1}),
    "half a byte": (ALICE, {PRODUCER_BYTE_RATE: 0.5}),
    "no number": (ALICE, {REQUEST_PERCENTAGE: float("nan")}),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_refusals_change_nothing(tmp_path: Path, what: str) -> None:
    entity, ops = REFUSED[what]
    async with running_node(tmp_path) as node, await connect(node) as connection:
        result = await alter(connection, entity, **ops)
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert result.error_message
        assert told(await describe(connection)) == {}


async def test_quotas_of_addresses_are_set_kept_and_removed(tmp_path: Path) -> None:
    """By the address that is meant, however it is written; a host is looked up at a start too."""
    quotas: dict[Entity, float] = {
        ((IP, None),): 10,
        ((IP, "10.0.0.1"),): 20,
        ((IP, "2001:DB8::0:1"),): 30,
        ((IP, "localhost"),): 40,
    }
    rates = {"10.0.0.1": 20, "2001:db8::1": 30, "127.0.0.1": 40, "10.0.0.2": 10}
    async with running_node(tmp_path) as node, await connect(node) as connection:
        for entity, rate in quotas.items():
            result = await alter(connection, entity, **{CONNECTION_CREATION_RATE: rate})
            assert result.error_code == 0
        assert {host: node.services.quotas.connection_rate(host) for host in rates} == rates
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert {host: node.services.quotas.connection_rate(host) for host in rates} == rates
        assert told(await describe(connection, (IP, 2, None))) == {
            entity: {CONNECTION_CREATION_RATE: rate} for entity, rate in quotas.items()
        }
        only = await describe(connection, (IP, 0, "10.0.0.1"))
        assert told(only) == {((IP, "10.0.0.1"),): {CONNECTION_CREATION_RATE: 20}}
        for entity in reversed(quotas):
            await alter(connection, entity, **{CONNECTION_CREATION_RATE: None})
            if entity == ((IP, "10.0.0.1"),):  # now it has everybody's
                assert node.services.quotas.connection_rate("10.0.0.1") == 10
        assert {node.services.quotas.connection_rate(host) for host in rates} == {None}
        assert told(await describe(connection)) == {}


async def test_a_partition_may_take_seconds(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        ops = {CONTROLLER_MUTATION_RATE: 0.25, "nonsense that was never set": None}
        assert (await alter(connection, ALICE, **ops)).error_code == 0
        assert told(await describe(connection)) == {ALICE: {CONTROLLER_MUTATION_RATE: 0.25}}


async def test_what_is_named_twice_is_refused(tmp_path: Path) -> None:
    rates = tuple(alters.OpData(key=PRODUCER_BYTE_RATE, value=n, remove=False) for n in (1, 2))
    who = (alters.EntityData(entity_type=USER, entity_name="alice"),)
    other = (alters.EntityData(entity_type=USER, entity_name="bob"),)
    asked = [(who, rates[:1]), (who, rates[1:]), (other, rates)]
    entries = tuple(alters.EntryData(entity=entity, ops=ops) for entity, ops in asked)
    async with running_node(tmp_path) as node, await connect(node) as connection:
        request = alters.AlterClientQuotasRequest(entries=entries, validate_only=False)
        response = await connection.request(request, alters.AlterClientQuotasResponse)
        refused = ErrorCode.INVALID_REQUEST
        assert [entry.error_code for entry in response.entries] == [0, refused, refused]
        assert told(await describe(connection)) == {ALICE: {PRODUCER_BYTE_RATE: 1}}


FILTERS: dict[str, tuple[list[tuple[str, int, str | None]], bool, set[Entity]]] = {
    "all": ([], False, {ALICE, ALICES_CONSOLE, EVERYBODY}),
    "none of no type": ([], True, set()),
    "of users": ([(USER, 2, None)], False, {ALICE, ALICES_CONSOLE, EVERYBODY}),
    "of users alone": ([(USER, 2, None)], True, {ALICE, EVERYBODY}),
    "alice's": ([(USER, 0, "alice")], False, {ALICE, ALICES_CONSOLE}),
    "the default": ([(USER, 1, None)], False, {EVERYBODY}),
    "both": ([(USER, 0, "alice"), (CLIENT_ID, 2, None)], True, {ALICES_CONSOLE}),
    "others": ([(USER, 0, "bob")], False, set()),
}


@pytest.mark.parametrize("which", FILTERS)
async def test_filters(tmp_path: Path, which: str) -> None:
    components, strict, expected = FILTERS[which]
    async with running_node(tmp_path) as node, await connect(node) as connection:
        for entity in (ALICE, ALICES_CONSOLE, EVERYBODY):
            await alter(connection, entity, **{PRODUCER_BYTE_RATE: 1.0})
        found = await describe(connection, *components, strict=strict)
        assert told(found).keys() == expected


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([(USER, 7, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, 0, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, 1, "a")], ErrorCode.INVALID_REQUEST),
        ([(USER, 2, None), (USER, 2, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, 2, None), (IP, 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_filters_that_make_no_sense(
    tmp_path: Path, components: list[tuple[str, int, str | None]], error: ErrorCode
) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        found = await describe(connection, *components)
        assert (found.error_code, found.entries) == (error, None)
