"""Names and data of the nodes in the tree that brokers share: quoted text, and JSON.

What is not JSON of the expected shape is CorruptData, and is never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import CorruptData
from lapse.metadata.tree import Node
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType

T = TypeVar("T")


class _Binding(msgspec.Struct, frozen=True):
    principal: str
    host: str
    operation: int
    permission: int


class Credential(msgspec.Struct, frozen=True):
    """One user's, of one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def part(text: str) -> str:
    """Any text as one part of a path; `text` is the inverse."""
    return "=" + quote(text, safe="")


def text(part: str) -> str:
    """The inverse."""
    return unquote(part.removeprefix("="))


def acl_part(binding: AclBinding) -> str:
    """The name of the node that a binding is in: of its resource pattern."""
    kinds = f"{int(binding.resource_type)}:{int(binding.pattern_type)}"
    return part(f"{kinds}:{binding.name}")


def bindings(name: str, node: Node, path: str) -> list[AclBinding]:
    """Those that one node has."""
    resource_type, pattern_type, resource = text(name).split(":", 2)
    return [
        AclBinding(
            ResourceType(int(resource_type)), PatternType(int(pattern_type)), resource,
            one.principal, one.host, Operation(one.operation), Permission(one.permission),
        )
        for one in decoded(node, list[_Binding], path)
    ]  # fmt: skip


def encoded_bindings(bindings: Iterable[AclBinding]) -> bytes | None:
    """None for no bindings."""
    found = [_Binding(b.principal, b.host, int(b.operation), int(b.permission)) for b in bindings]
    return encoded(sorted(found, key=msgspec.structs.astuple)) if found else None


def credentials(node: Node, path: str) -> dict[str, Credential]:
    """By the mechanism's number."""
    return decoded(node, dict[str, Credential], path)


def encoded(data: Any) -> bytes:
    """JSON."""
    return msgspec.json.encode(data)


def decoded(node: Node, kind: type[T], path: str) -> T:
    """The inverse; raises CorruptData."""
    try:
        return from_json(node.data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CorruptData(path, 0, str(e)) from e
