"""Nodes with logins and ACLs for tests, and clients that log in over a bare connection."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from lapse.broker.access.listeners import Address
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

T = TypeVar("T")

JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_admin="a" user_alice="b" user_bob="c";'
)
PASSWORDS = {"admin": "a", "alice": "b", "bob": "c"}
SECURED = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    JAAS: USERS,
    "connection.failed.authentication.delay.ms": "0",
}
WITH_ACLS = {
    **SECURED,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",  # who comes by the plaintext listener
}


def address_of(node: Node, listener: str = "SASL_PLAINTEXT") -> Address:
    (found,) = [e.listener.address for e in node.services.entrances if e.listener.name == listener]
    return found


def client_file(path: Path, user: str) -> Path:
    """What `--command-config` names, for one of USERS."""
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{user}" password="{PASSWORDS[user]}";\n'
    )
    return path


async def anonymous(node: Node) -> BrokerConnection:
    """A connection to the listener with SASL, before its login."""
    address = address_of(node)
    return await BrokerConnection.open(address.host, address.port)


async def log_in(
    connection: BrokerConnection, user: str, password: str, mechanism: str = "PLAIN"
) -> SaslAuthenticateResponse:
    """By PLAIN; what the last step is answered."""
    await connection.request(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
    token = f"\0{user}\0{password}".encode()
    return await connection.request(
        SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse
    )


async def logged_in(node: Node, user: str) -> BrokerConnection:
    connection = await anonymous(node)
    answer = await log_in(connection, user, PASSWORDS[user])
    assert answer.error_code == 0, answer.error_message
    return connection


def allow(
    operation: Operation,
    kind: ResourceType,
    name: str,
    user: str = "alice",
    *,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, pattern, name, f"User:{user}", "*", operation, permission)


async def set_acls(node: Node, bindings: Iterable[AclBinding]) -> None:
    created = await node.services.access.create_acls(list(bindings))
    assert not any(created.errors)


async def ask(connection: BrokerConnection, request: Any, response: type[T], version: int) -> T:
    return await connection.request(request, response, version=version)
