"""AlterClientQuotas and DescribeClientQuotas: what is set, over a restart, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from lapse.client.connection import BrokerConnection
from lapse.metadata.store import Entity
from lapse.wire.schema import alter_client_quotas as alters
from lapse.wire.schema import describe_client_quotas as describes
from tests.unit.broker.running import connect, running_node

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
    "no address": (((IP, "not an address"),), {PRODUCER_BYTE_RATE: 1}),
    "one that is not enforced": (((IP, "1.2.3.4"),), {"connection_creation_rate": 1}),
    "one more": (ALICE, {"controller_mutation_rate": 1}),
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
