"""AlterUserScramCredentials, and what DescribeUserScramCredentials tells afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from lapse.wire.schema.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

SHA_256, SHA_512 = 1, 2
UNSUPPORTED, NOT_FOUND, DUPLICATE, UNACCEPTABLE = 33, 91, 92, 93


def upsert(
    name: str, mechanism: int = SHA_256, iterations: int = 4096, **more: bytes
) -> ScramCredentialUpsertion:
    secrets = {"salt": b"salt", "salted_password": bytes(32 if mechanism == SHA_256 else 64)}
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, **{**secrets, **more}
    )


async def alter(
    connection: BrokerConnection,
    *upsertions: ScramCredentialUpsertion,
    deletions: Sequence[tuple[str, int]] = (),
) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=tuple(ScramCredentialDeletion(name=n, mechanism=m) for n, m in deletions),
        upsertions=upsertions,
    )
    answer = await connection.request(request, AlterUserScramCredentialsResponse)
    return {result.user: result.error_code for result in answer.results}


async def describe(
    connection: BrokerConnection, *users: str
) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    request = DescribeUserScramCredentialsRequest(
        users=tuple(UserName(name=name) for name in users) or None
    )
    answer = await connection.request(request, DescribeUserScramCredentialsResponse)
    return {
        r.user: (r.error_code, [(c.mechanism, c.iterations) for c in r.credential_infos])
        for r in answer.results
    }


async def test_credentials_come_and_go(connection: BrokerConnection) -> None:
    assert await alter(
        connection, upsert("a"), upsert("a", SHA_512, 8192), upsert("b", iterations=16384)
    ) == {"a": 0, "b": 0}
    everybody = {"a": (0, [(SHA_256, 4096), (SHA_512, 8192)]), "b": (0, [(SHA_256, 16384)])}
    assert await describe(connection) == everybody
    assert await alter(connection, upsert("a", iterations=5000), deletions=[("a", SHA_512)]) == {
        "a": 0
    }
    assert await describe(connection, "a", "x") == {
        "a": (0, [(SHA_256, 5000)]),
        "x": (NOT_FOUND, []),
    }
    assert await describe(connection, "a", "a") == {"a": (DUPLICATE, [])}


async def test_a_user_is_changed_whole_or_not_at_all(
    node: Node, connection: BrokerConnection
) -> None:
    answers = await alter(
        connection,
        upsert("few", iterations=4095),
        upsert("many", iterations=16385),
        upsert("unknown", 3),
        upsert("short", salted_password=b"x"),
        upsert("unsalted", salt=b""),
        upsert("half"),
        upsert("half", SHA_512, 1),
        upsert("twice"),
        upsert("twice"),
        upsert(""),
        upsert("fine"),
        deletions=[("gone", SHA_256)],
    )
    assert answers == {
        "gone": NOT_FOUND, "few": UNACCEPTABLE, "many": UNACCEPTABLE, "unknown": UNSUPPORTED,
        "short": UNACCEPTABLE, "unsalted": UNACCEPTABLE, "half": UNACCEPTABLE, "twice": DUPLICATE,
        "": UNACCEPTABLE, "fine": 0,
    }  # fmt: skip
    assert {user for user, _ in node.services.access.credentials} == {"fine"}
