"""`MetadataStore` of a cluster: everything in a `tree` that all brokers share.

    /cluster            the cluster's id
    /names/NAME         topic id: what makes a topic exist
    /topics/ID          a topic: its name, partitions and settings
    /settings/BROKER    settings that were changed while brokers ran
    /acls/RESOURCE      bindings of one resource pattern
    /scram/USER         credentials of one user, by mechanism
    /quotas/ENTITY      client quotas of one entity
    /secrets/NAME       random bytes
    /producer-ids       where the next block begins

Every change but the last two carries the checks of a `fence`, so a broker that no longer holds the
office of controller changes nothing, however late its request arrives: NOT_CONTROLLER then.

Names that people choose are quoted (`_part`): a tree allows few characters in a path. What is not
JSON of the expected shape is CorruptData, and is never guessed at.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.metadata.store import Entity, TopicRecord, no_topic, topic_exists
from lapse.metadata.tree import Change, Check, Conflict, Create, Node, Remove, Step, Tree
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import Credentials, ScramCredential, ScramMechanism

CLUSTER = "/cluster"
NAMES, TOPICS, SETTINGS = "/names", "/topics", "/settings"
ACLS, SCRAM, QUOTAS, SECRETS = "/acls", "/scram", "/quotas", "/secrets"
PRODUCER_IDS = "/producer-ids"
FOLDERS = (NAMES, TOPICS, SETTINGS, ACLS, SCRAM, QUOTAS, SECRETS)
COMMIT_BYTES_MAX = 900_000  # ZooKeeper's default limit is a megabyte, names and versions included

T = TypeVar("T")

# The checks that each of a controller's changes carries.
Fence = Callable[[], Sequence[Check]]


class _Topic(msgspec.Struct, frozen=True):
    name: str
    partitions: int
    overrides: dict[str, str]
    is_going: bool = False


class _Binding(msgspec.Struct, frozen=True):
    principal: str
    host: str
    operation: int
    permission: int


class _Credential(msgspec.Struct, frozen=True):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class TreeStore:
    """Metadata in a tree.

    Args:
        tree: one session with it; closed by its owner.
        fence: as above.
        new_cluster_id: gives a cluster id if the tree is new.
    """

    def __init__(self, tree: Tree, fence: Fence, new_cluster_id: Callable[[], str]) -> None:
        self._tree, self._fence = tree, fence
        made = [CLUSTER, PRODUCER_IDS, *FOLDERS]
        data = [new_cluster_id().encode(), b"0", *(b"" for _ in FOLDERS)]
        for path, content, node in zip(made, data, tree.get(made), strict=True):
            if node is None:
                _create_unless_there(tree, path, content)

    def cluster_id(self) -> str:
        return self._one(CLUSTER).data.decode()

    # --- topics ---------------------------------------------------------------------------------

    def topics(self) -> Sequence[TopicRecord]:
        return [record for record, topic in self._all_topics() if not topic.is_going]

    def deletions(self) -> Sequence[TopicRecord]:
        return [record for record, topic in self._all_topics() if topic.is_going]

    def _all_topics(self) -> list[tuple[TopicRecord, _Topic]]:
        found = []
        for name, node in self._in(TOPICS).items():
            topic_id, topic = uuid.UUID(name), _decoded(node, _Topic, f"{TOPICS}/{name}")
            record = TopicRecord(topic.name, topic_id, topic.partitions, topic.overrides)
            found.append((record, topic))
        return sorted(found, key=lambda pair: pair[0].name)

    def create_topics(self, topics: Sequence[TopicRecord]) -> None:
        steps: list[Step] = []
        for topic in topics:
            steps.append(Create(_name_path(topic.name), str(topic.topic_id).encode()))
            steps.append(Create(_topic_path(topic.topic_id), _encoded(_topic_of(topic))))
        try:
            self._commit(steps)
        except Conflict as e:
            taken = {_name_path(topic.name): topic.name for topic in topics}
            if e.step.path not in taken:
                raise
            raise topic_exists(taken[e.step.path]) from None

    def change_topic(self, topic: TopicRecord) -> None:
        node = self._live(topic.topic_id)
        path = _topic_path(topic.topic_id)
        self._commit([Change(path, _encoded(_topic_of(topic)), node.version)])

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        node, path = self._live(topic_id), _topic_path(topic_id)
        topic = _decoded(node, _Topic, path)
        name_path = _name_path(topic.name)
        going = _encoded(msgspec.structs.replace(topic, is_going=True))
        self._commit(
            [Remove(name_path, self._one(name_path).version), Change(path, going, node.version)]
        )

    def finish_deletion(self, topic_id: uuid.UUID) -> None:
        path = _topic_path(topic_id)
        [node] = self._tree.get([path])
        if node is not None and _decoded(node, _Topic, path).is_going:
            self._commit([Remove(path, node.version)])

    def _live(self, topic_id: uuid.UUID) -> Node:
        path = _topic_path(topic_id)
        [node] = self._tree.get([path])
        if node is None or _decoded(node, _Topic, path).is_going:
            raise no_topic(topic_id)
        return node

    # --- settings and quotas --------------------------------------------------------------------

    def broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        return {
            _text(name): settings
            for name, node in self._in(SETTINGS).items()
            if (settings := _decoded(node, dict[str, str], f"{SETTINGS}/{name}"))
        }

    def set_broker_settings(self, broker: str, settings: Mapping[str, str]) -> None:
        self._put({f"{SETTINGS}/{_part(broker)}": _encoded(dict(settings)) if settings else None})

    def client_quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        found: dict[Entity, Mapping[str, float]] = {}
        for name, node in self._in(QUOTAS).items():
            entity = tuple((kind, who) for kind, who in json.loads(_text(name)))
            found[entity] = _decoded(node, dict[str, float], f"{QUOTAS}/{name}")
        return found

    def set_client_quotas(self, changed: Mapping[Entity, Mapping[str, float]]) -> None:
        self._put(
            {
                f"{QUOTAS}/{_part(json.dumps(entity))}": _encoded(dict(values)) if values else None
                for entity, values in changed.items()
            }
        )

    # --- security -------------------------------------------------------------------------------

    def acls(self) -> frozenset[AclBinding]:
        return frozenset(
            binding for name, node in self._in(ACLS).items() for binding in _bindings(name, node)
        )

    def change_acls(self, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> None:
        added, removed = set(added), set(removed)
        names = sorted({_acl_part(binding) for binding in added | removed})
        paths = [f"{ACLS}/{name}" for name in names]
        changed: dict[str, bytes | None] = {}
        for name, path, node in zip(names, paths, self._tree.get(paths), strict=True):
            before = set() if node is None else set(_bindings(name, node))
            of_it = {binding for binding in added if _acl_part(binding) == name}
            changed[path] = _encoded_bindings((before - removed) | of_it)
        self._put(changed)

    def credentials(self) -> Credentials:
        return {
            (_text(name), ScramMechanism(int(mechanism))): ScramCredential(
                one.salt, one.stored_key, one.server_key, one.iterations
            )
            for name, node in self._in(SCRAM).items()
            for mechanism, one in _credentials(name, node).items()
        }

    def change_credentials(
        self, changes: Mapping[tuple[str, ScramMechanism], ScramCredential | None]
    ) -> None:
        names = sorted({_part(user) for user, _ in changes})
        paths = [f"{SCRAM}/{name}" for name in names]
        changed: dict[str, bytes | None] = {}
        for name, path, node in zip(names, paths, self._tree.get(paths), strict=True):
            of_user = {} if node is None else _credentials(name, node)
            for (user, mechanism), c in changes.items():
                if _part(user) != name:
                    continue
                of_user.pop(str(int(mechanism)), None)
                if c is not None:
                    kept = _Credential(c.salt, c.stored_key, c.server_key, c.iterations)
                    of_user[str(int(mechanism))] = kept
            changed[path] = _encoded(of_user) if of_user else None
        self._put(changed)

    # --- what any broker may change -------------------------------------------------------------

    def secret_of(self, name: str, fresh: Callable[[], bytes]) -> bytes:
        path = f"{SECRETS}/{_part(name)}"
        [node] = self._tree.get([path])
        if node is None:
            _create_unless_there(self._tree, path, fresh())
            node = self._one(path)
        return node.data

    def allocate_producer_ids(self, count: int) -> range:
        while True:
            node = self._one(PRODUCER_IDS)
            start = int(node.data)
            try:
                step = Change(PRODUCER_IDS, str(start + count).encode(), node.version)
                self._tree.commit([step])
            except Conflict:
                continue  # another broker took the block
            return range(start, start + count)

    def close(self) -> None:
        """Nothing: the session is its owner's."""

    # --- reading and changing -------------------------------------------------------------------

    def _one(self, path: str) -> Node:
        [node] = self._tree.get([path])
        if node is None:
            raise CorruptData(path, 0, "a node that must be there is missing")
        return node

    def _in(self, folder: str) -> dict[str, Node]:
        """The nodes below one, by name; one that goes meanwhile is left out."""
        names = self._tree.children(folder)
        nodes = self._tree.get([f"{folder}/{name}" for name in names])
        return {n: node for n, node in zip(names, nodes, strict=True) if node is not None}

    def _put(self, wanted: Mapping[str, bytes | None]) -> None:
        """Set nodes to data, or remove them, all at once."""
        paths = list(wanted)
        steps: list[Step] = []
        for path, node in zip(paths, self._tree.get(paths), strict=True):
            data = wanted[path]
            if data is not None:
                steps.append(
                    Create(path, data) if node is None else Change(path, data, node.version)
                )
            elif node is not None:
                steps.append(Remove(path, node.version))
        if steps:
            self._commit(steps)

    def _commit(self, steps: Sequence[Step]) -> None:
        """With the fence. Only a controller changes this, so a Conflict without it is a bug."""
        size = sum(len(step.path) + len(getattr(step, "data", b"")) for step in steps)
        if size > COMMIT_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a change of {size} bytes of metadata; {COMMIT_BYTES_MAX} at once are allowed",
            )
        fence = self._fence()
        try:
            self._tree.commit([*fence, *steps])
        except Conflict as e:
            if e.step in fence:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, f"this broker is no longer the controller: {e}"
                ) from e
            raise


def _create_unless_there(tree: Tree, path: str, data: bytes) -> None:
    try:
        tree.commit([Create(path, data)])
    except Conflict:
        if tree.get([path])[0] is None:
            raise


# --- names and data -------------------------------------------------------------------------------


def _part(text: str) -> str:
    """Any text as one part of a path; `_text` is the inverse."""
    return "=" + quote(text, safe="")


def _text(part: str) -> str:
    return unquote(part.removeprefix("="))


def _name_path(name: str) -> str:
    return f"{NAMES}/{_part(name)}"


def _topic_path(topic_id: uuid.UUID) -> str:
    return f"{TOPICS}/{topic_id}"


def _acl_part(binding: AclBinding) -> str:
    kinds = f"{int(binding.resource_type)}:{int(binding.pattern_type)}"
    return _part(f"{kinds}:{binding.name}")


def _topic_of(record: TopicRecord) -> _Topic:
    return _Topic(record.name, record.partitions, dict(record.overrides))


def _bindings(name: str, node: Node) -> list[AclBinding]:
    resource_type, pattern_type, resource = _text(name).split(":", 2)
    return [
        AclBinding(
            ResourceType(int(resource_type)), PatternType(int(pattern_type)), resource,
            one.principal, one.host, Operation(one.operation), Permission(one.permission),
        )
        for one in _decoded(node, list[_Binding], f"{ACLS}/{name}")
    ]  # fmt: skip


def _encoded_bindings(bindings: Iterable[AclBinding]) -> bytes | None:
    found = [_Binding(b.principal, b.host, int(b.operation), int(b.permission)) for b in bindings]
    return _encoded(sorted(found, key=msgspec.structs.astuple)) if found else None


def _credentials(name: str, node: Node) -> dict[str, _Credential]:
    return _decoded(node, dict[str, _Credential], f"{SCRAM}/{name}")


def _encoded(data: Any) -> bytes:
    return msgspec.json.encode(data)


def _decoded(node: Node, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(node.data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CorruptData(path, 0, str(e)) from e
