"""`MetadataStore` of a cluster: everything in a `tree` that all brokers share.

    /features           the levels of features that all brokers have agreed on
    /cluster            the cluster's id
    /names/NAME         topic id: what makes a topic exist
    /topics/ID          a topic: its name, partitions and settings
    /topics/ID/N        who has one partition, and who leads it (`partition_states`)
    /topics/ID/N/BROKER how far that replica is cleaned (`replication.cleaned`)
    /settings/BROKER    settings that were changed while brokers ran
    /acls/RESOURCE      bindings of one resource pattern
    /scram/USER         credentials of one user, by mechanism
    /quotas/ENTITY      client quotas of one entity
    /disks/BROKER       ids of the log directories that it had when it last started
    /secrets/NAME       random bytes
    /producer-ids       where the next block begins; below it who took the last ones
    /changes/KIND       changed with all that brokers must read again: topics, quotas or users

Every change but those of secrets and producer ids carries the checks of a `fence`, so a broker that
no longer holds the office of controller changes nothing, however late its request arrives:
NOT_CONTROLLER then. What any broker may change names the version that it goes by: a leader the
state of its partition, and who has removed its files of a topic that is being deleted.

Names that people choose are quoted (`part`): a tree allows few characters in a path. What is not
JSON of the expected shape is CorruptData, and is never guessed at.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import starmap
from typing import NamedTuple, TypeVar

import msgspec

from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.log.facts import CleanedTo
from lapse.metadata import producer_ids
from lapse.metadata.election import doubted, resigned, stopped
from lapse.metadata.features import ALL, Levels, decoded_levels, encoded_levels
from lapse.metadata.membership import still_registered
from lapse.metadata.partition_states import LogEnd, PartitionState, StateChange
from lapse.metadata.reassignment import left
from lapse.metadata.state_codec import decoded_state
from lapse.metadata.store import (
    Entity,
    Stale,
    TopicRecord,
    levels_changed,
    require_next,
    require_same,
    topic_exists,
)
from lapse.metadata.tree import (
    Change,
    Check,
    Conflict,
    Create,
    Node,
    Remove,
    Step,
    Touch,
    Tree,
    nodes_below,
)
from lapse.metadata.tree_codec import (
    Credential,
    acl_part,
    bindings,
    credentials,
    decoded,
    encoded,
    encoded_bindings,
    part,
    text,
)
from lapse.metadata.tree_topics import (
    NAMES,
    TOPICS,
    TopicData,
    all_topics,
    data_of,
    deletion_begun,
    live_topic,
    name_path,
    new_states,
    state_changed,
    stays,
    topic_path,
)
from lapse.security.acls import AclBinding
from lapse.security.scram import Credentials, ScramCredential, ScramMechanism

CLUSTER, FEATURES = "/cluster", "/features"
SETTINGS = "/settings"
ACLS, SCRAM, QUOTAS, SECRETS = "/acls", "/scram", "/quotas", "/secrets"
DISKS = "/disks"
CHANGES = "/changes"
TOPICS_CHANGED, QUOTAS_CHANGED, USERS_CHANGED = (
    f"{CHANGES}/{kind}" for kind in ("topics", "quotas", "users")
)
CHANGED = (TOPICS_CHANGED, QUOTAS_CHANGED, USERS_CHANGED)
FOLDERS = (NAMES, TOPICS, SETTINGS, ACLS, SCRAM, QUOTAS, SECRETS, DISKS, CHANGES, *CHANGED)
COMMIT_BYTES_MAX = 900_000  # ZooKeeper's default limit is a megabyte, with all of these
STEP_BYTES, CREATE_BYTES = 25, 100  # of a step besides path and data: versions, who may read it
STATES_AT_ONCE = 500  # in one commit
TRIES = 100  # of an end, while other brokers end it too

T = TypeVar("T")


class Said(NamedTuple):
    """Whose word it is: a broker's, of its replica of a partition."""

    topic_id: uuid.UUID
    number: int
    broker: int

    @property
    def path(self) -> str:
        return f"{topic_path(self.topic_id)}/{self.number}/{self.broker}"


_Moment = tuple[int, int]

# The checks that each of a controller's changes carries.
Fence = Callable[[], Sequence[Check]]


def _has_all(_topic: TopicRecord, _number: int) -> bool:
    return True


class TreeStore:
    """Metadata in a tree.

    Args:
        tree: one session with it; closed by its owner.
        fence: as above.
        new_cluster_id: gives a cluster id if the tree is new.
        node_id: the broker that asks.
        first_levels: feature levels if the tree is new.
    """

    def __init__(
        self,
        tree: Tree,
        fence: Fence,
        new_cluster_id: Callable[[], str],
        node_id: int,
        first_levels: Levels = ALL,
    ) -> None:
        self._tree, self._fence, self._node_id = tree, fence, node_id
        # A tree from before there were levels has a cluster's id: its brokers could do it all.
        is_new = tree.get([CLUSTER])[0] is None
        made = [FEATURES, CLUSTER, producer_ids.NEXT, *FOLDERS]
        levels = encoded_levels(first_levels if is_new else ALL)
        data = [levels, new_cluster_id().encode(), b"0", *(b"" for _ in FOLDERS)]
        for path, content, node in zip(made, data, tree.get(made), strict=True):
            if node is None:
                _create_unless_there(tree, path, content)

    def cluster_id(self) -> str:
        return self._one(CLUSTER).data.decode()

    def levels(self) -> Levels:
        return decoded_levels(self._one(FEATURES).data, FEATURES)

    def set_levels(self, levels: Levels) -> None:
        """All brokers' topics go by them."""
        node = self._one(FEATURES)
        require_next(decoded_levels(node.data, FEATURES), levels)
        try:
            step = Change(FEATURES, encoded_levels(levels), node.version)
            self._commit([step], TOPICS_CHANGED)
        except Conflict as e:
            raise levels_changed() from e

    # --- topics ---------------------------------------------------------------------------------

    def topics(self) -> Sequence[TopicRecord]:
        return [record for record, topic in all_topics(self._tree) if not topic.is_going]

    def deletions(self) -> Sequence[TopicRecord]:
        """Those of which this broker may still have files."""
        return [
            record
            for record, topic in all_topics(self._tree)
            if topic.is_going and (not topic.left_at or self._node_id in topic.left_at)
        ]

    def create_topics(self, topics: Sequence[TopicRecord]) -> None:
        steps: list[Step] = []
        for topic in topics:
            steps.append(Create(name_path(topic.name), str(topic.topic_id).encode()))
            steps.append(Create(topic_path(topic.topic_id), encoded(data_of(topic))))
            steps += new_states(topic, 0)
        try:
            self._commit(steps, TOPICS_CHANGED)
        except Conflict as e:
            taken = {name_path(topic.name): topic for topic in topics}
            if e.step.path not in taken:
                raise
            topic, node = taken[e.step.path], self._tree.get([e.step.path])[0]
            if node is None or node.data != str(topic.topic_id).encode():
                raise topic_exists(topic.name) from None
            # Else it was done before a connection broke, and what was made has changed since.

    def change_topic(self, topic: TopicRecord, instead_of: TopicRecord) -> None:
        node, path = live_topic(self._tree, topic.topic_id), topic_path(topic.topic_id)
        stored, was = decoded(node, TopicData, path), data_of(instead_of)
        require_same(f"topic {topic.name}", stored, was)
        steps: list[Step] = [Change(path, encoded(data_of(topic)), node.version)]
        if topic.states and topic.partitions < was.partitions:  # given up before anybody used them
            gone = [f"{path}/{number}" for number in range(topic.partitions, was.partitions)]
            versions = zip(gone, self._tree.get(gone), strict=True)
            steps += [Remove(at, n.version) for at, n in versions if n is not None]
        try:
            self._commit([*steps, *new_states(topic, was.partitions)], TOPICS_CHANGED)
        except Conflict as e:
            raise Stale(f"topic {topic.name}") from e

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        while True:
            try:
                self._commit(deletion_begun(self._tree, topic_id), TOPICS_CHANGED)
            except Conflict:
                continue  # a leader, or a reassignment, has changed it meanwhile
            return

    def finish_deletion(self, topic_id: uuid.UUID) -> None:
        """Of this broker's files; with the last broker's the topic is forgotten."""
        path = topic_path(topic_id)
        for _ in range(TRIES):
            [node] = self._tree.get([path])
            if node is None:
                return
            topic = decoded(node, TopicData, path)
            if not topic.is_going:
                return
            left_at = [broker for broker in topic.left_at if broker != self._node_id]
            try:
                if left_at:
                    left = encoded(msgspec.structs.replace(topic, left_at=left_at))
                    if left_at != topic.left_at:
                        self._tree.commit([Change(path, left, node.version)])
                else:
                    self._forget(path, node)
            except Conflict:
                continue  # another broker was done at the same time
            return
        raise StorageError(f"{path}: others change it all the time")

    def _forget(self, path: str, node: Node) -> None:
        """In parts, since all of it may be more than one commit takes; the topic's node last."""
        paths = [f"{path}/{number}" for number in self._tree.children(path)]
        steps: list[Step] = []
        for at, state in zip(paths, self._tree.get(paths), strict=True):
            if state is not None:
                words = [f"{at}/{broker}" for broker in self._tree.children(at)]
                kept = zip(words, self._tree.get(words), strict=True)
                steps += [Remove(word, n.version) for word, n in kept if n is not None]
                steps.append(Remove(at, state.version))
        steps.append(Remove(path, node.version))
        for at_once in range(0, len(steps), STATES_AT_ONCE):
            self._tree.commit(steps[at_once : at_once + STATES_AT_ONCE])

    # --- partitions -----------------------------------------------------------------------------

    def set_states(self, changes: Sequence[StateChange]) -> None:
        """Other states, as the controller decided; Conflict where one has changed meanwhile.

        Nobody gets a replica of a topic that is going: who has one to remove is settled by then.
        """
        for at in range(0, len(changes), STATES_AT_ONCE):
            some = changes[at : at + STATES_AT_ONCE]
            growing = {topic_path(one.topic_id): None for one in some if one.state.adding}
            checks = [stays(self._tree, path) for path in growing]
            self._commit([*checks, *map(state_changed, some)], TOPICS_CHANGED)

    def states(self, wanted: Sequence[tuple[uuid.UUID, int]]) -> Sequence[PartitionState | None]:
        """The states of partitions as they are now; None of one that there is not."""
        paths = [f"{topic_path(topic_id)}/{number}" for topic_id, number in wanted]
        nodes = zip(self._tree.get(paths), paths, strict=True)
        return [None if node is None else decoded_state(node, path) for node, path in nodes]

    def finish_departure(self, topic_id: uuid.UUID, number: int) -> None:
        while True:
            [state] = self.states([(topic_id, number)])
            if state is None or self._node_id not in state.left_at:
                return
            try:
                self.set_own_state(StateChange(topic_id, number, left(state, self._node_id)))
            except Conflict:
                continue
            return

    def set_own_state(self, change: StateChange) -> None:
        """Another state, as the partition's leader decided, or a replica of itself.

        Conflict where it has changed, and where who joins has started again (KIP-903).
        """
        alive = [] if change.joins is None else [still_registered(self._tree, *change.joins)]
        self._tree.commit([*alive, state_changed(change), Touch(TOPICS_CHANGED, b"")])

    def resign(self, has_log: Callable[[TopicRecord, int], bool] = _has_all) -> None:
        """Lead nothing that has other replicas until elected anew: this broker has just started.

        An epoch that it leads again is a new one: else it would make its followers forget what it
        has lost. It is not elected, nor in sync, where its log is gone: as for `doubt`.
        """

        def after(topic: TopicRecord, number: int, state: PartitionState) -> PartitionState | None:
            has = has_log(topic, number)
            changed = resigned(state, self._node_id, lost_nothing=True, has_log=has)
            return changed or (None if has or self._node_id in state.isr else state)

        self._change_own(after)

    def doubt(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Leave the in-sync replicas where there are others: this broker may have lost something.

        It was not stopped in order. `ends`: of its logs, opened. Where it is not among them the
        state is written all the same: a leader that lets it in by what it had comes too late then.
        """

        def after(topic: TopicRecord, number: int, state: PartitionState) -> PartitionState | None:
            if len(state.replicas) == 1 or self._node_id in state.lost:
                return None
            end = ends.get(TopicPartition(topic.name, number))
            if end is None:  # offline
                changed = resigned(state, self._node_id, lost_nothing=False)
            else:
                changed = doubted(state, self._node_id, end)
            return changed or (None if self._node_id in state.isr else state)

        self._change_own(after)

    def note_ends(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Say how far this broker's logs go, where that may be needed: it is about to stop."""

        def after(topic: TopicRecord, number: int, state: PartitionState) -> PartitionState | None:
            end = ends.get(TopicPartition(topic.name, number))
            return None if end is None else stopped(state, self._node_id, end)

        self._change_own(after)

    def _change_own(
        self, after: Callable[[TopicRecord, int, PartitionState], PartitionState | None]
    ) -> None:
        """Change the states of what this broker has; again where the controller was faster."""
        while True:
            changes = [
                StateChange(topic.topic_id, number, changed)
                for topic in self.topics()
                for number, state in enumerate(topic.states)
                if self._node_id in state.replicas
                and (changed := after(topic, number, state)) is not None
            ]
            try:
                for at in range(0, len(changes), STATES_AT_ONCE):
                    some = changes[at : at + STATES_AT_ONCE]
                    self._tree.commit([*map(state_changed, some), Touch(TOPICS_CHANGED, b"")])
            except Conflict:
                continue
            return

    def disks(self) -> frozenset[str]:
        """Ids of the log directories that this broker had when it last started."""
        path = f"{DISKS}/{self._node_id}"
        [node] = self._tree.get([path])
        return frozenset() if node is None else frozenset(decoded(node, list[str], path))

    def keep_disks(self, ids: AbstractSet[str]) -> None:
        """Remember those that it has, once all is stored that follows from those that it lacks."""
        if ids != self.disks():
            path, data = f"{DISKS}/{self._node_id}", encoded(sorted(ids))
            [node] = self._tree.get([path])
            self._tree.commit([Create(path, data) if node is None else Touch(path, data)])

    def said(self, wanted: Sequence[Said]) -> Sequence[tuple[CleanedTo, ...]]:
        """How far replicas are cleaned, as they said; nothing of one that has said nothing."""
        paths = [one.path for one in wanted]
        return [
            () if node is None else tuple(starmap(CleanedTo, decoded(node, list[_Moment], path)))
            for path, node in zip(paths, self._tree.get(paths), strict=True)
        ]

    def say(self, said: Mapping[Said, tuple[CleanedTo, ...]]) -> None:
        """Keep the word of this broker; of a topic that is gone it is nobody's."""
        paths = [one.path for one in said]
        for one, path, node in zip(said, paths, self._tree.get(paths), strict=True):
            data = encoded([(word.offset, word.at_ms) for word in said[one]])
            try:
                self._tree.commit([Create(path, data) if node is None else Touch(path, data)])
            except Conflict:
                if self._tree.get([topic_path(one.topic_id)])[0] is not None:
                    raise

    def adopt(self) -> int:
        """Have this broker lead what no broker is known to have; returns how many topics.

        They are of the time when there was one broker, and it is this one.
        """
        found = [record for record in self.topics() if not record.states and record.partitions]
        alone = PartitionState((self._node_id,), (self._node_id,), self._node_id, 0)
        for record in found:
            owned = replace(record, states=(alone,) * record.partitions)
            self._commit(new_states(owned, 0), TOPICS_CHANGED)
        return len(found)

    # --- settings and quotas --------------------------------------------------------------------

    def broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        nodes = nodes_below(self._tree, SETTINGS).items()
        found = {text(n): decoded(node, dict[str, str], f"{SETTINGS}/{n}") for n, node in nodes}
        return {broker: settings for broker, settings in found.items() if settings}

    def set_broker_settings(
        self, broker: str, settings: Mapping[str, str], instead_of: Mapping[str, str] | None = None
    ) -> None:
        path = f"{SETTINGS}/{part(broker)}"
        kept = encoded(dict(settings)) if settings else None
        own = broker == str(self._node_id)  # which that broker alone changes
        was = None if instead_of is None else {path: instead_of}
        self._put({path: kept}, TOPICS_CHANGED, fenced=not own, instead_of=was)

    def client_quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        found: dict[Entity, Mapping[str, float]] = {}
        for name, node in nodes_below(self._tree, QUOTAS).items():
            entity = tuple((kind, who) for kind, who in json.loads(text(name)))
            found[entity] = decoded(node, dict[str, float], f"{QUOTAS}/{name}")
        return found

    def set_client_quotas(
        self,
        changed: Mapping[Entity, Mapping[str, float]],
        instead_of: Mapping[Entity, Mapping[str, float]] | None = None,
    ) -> None:
        paths = {entity: f"{QUOTAS}/{part(json.dumps(entity))}" for entity in changed}
        kept = {
            paths[e]: encoded(dict(values)) if values else None for e, values in changed.items()
        }
        was = None if instead_of is None else {paths[e]: vs for e, vs in instead_of.items()}
        self._put(kept, QUOTAS_CHANGED, instead_of=was)

    # --- security -------------------------------------------------------------------------------

    def acls(self) -> frozenset[AclBinding]:
        return frozenset(
            binding
            for name, node in nodes_below(self._tree, ACLS).items()
            for binding in bindings(name, node, f"{ACLS}/{name}")
        )

    def change_acls(self, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> None:
        added, removed = set(added), set(removed)
        names = sorted({acl_part(binding) for binding in added | removed})
        paths = [f"{ACLS}/{name}" for name in names]
        changed: dict[str, bytes | None] = {}
        for name, path, node in zip(names, paths, self._tree.get(paths), strict=True):
            before = set() if node is None else set(bindings(name, node, path))
            of_it = {binding for binding in added if acl_part(binding) == name}
            changed[path] = encoded_bindings((before - removed) | of_it)
        self._put(changed, USERS_CHANGED)

    def credentials(self) -> Credentials:
        return {
            (text(name), ScramMechanism(int(mechanism))): ScramCredential(
                one.salt, one.stored_key, one.server_key, one.iterations
            )
            for name, node in nodes_below(self._tree, SCRAM).items()
            for mechanism, one in credentials(node, f"{SCRAM}/{name}").items()
        }

    def change_credentials(
        self, changes: Mapping[tuple[str, ScramMechanism], ScramCredential | None]
    ) -> None:
        names = sorted({part(user) for user, _ in changes})
        paths = [f"{SCRAM}/{name}" for name in names]
        changed: dict[str, bytes | None] = {}
        for name, path, node in zip(names, paths, self._tree.get(paths), strict=True):
            of_user = {} if node is None else credentials(node, path)
            for (user, mechanism), c in changes.items():
                if part(user) != name:
                    continue
                of_user.pop(str(int(mechanism)), None)
                if c is not None:
                    kept = Credential(c.salt, c.stored_key, c.server_key, c.iterations)
                    of_user[str(int(mechanism))] = kept
            changed[path] = encoded(of_user) if of_user else None
        self._put(changed, USERS_CHANGED)

    # --- what any broker may change -------------------------------------------------------------

    def secret_of(self, name: str, fresh: Callable[[], bytes]) -> bytes:
        path = f"{SECRETS}/{part(name)}"
        [node] = self._tree.get([path])
        if node is None:
            _create_unless_there(self._tree, path, fresh())
            node = self._one(path)
        return node.data

    def allocate_producer_ids(self, count: int) -> range:
        return producer_ids.allocate(self._tree, self._node_id, count)

    def close(self) -> None:
        """Nothing: the session is its owner's."""

    # --- reading and changing -------------------------------------------------------------------

    def _one(self, path: str) -> Node:
        [node] = self._tree.get([path])
        if node is None:
            raise CorruptData(path, 0, "a node that must be there is missing")
        return node

    def _put(
        self,
        wanted: Mapping[str, bytes | None],
        kind: str,
        *,
        fenced: bool = True,
        instead_of: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """Set nodes to data, or remove them, all at once.

        With `instead_of`, which is nothing of a node that there is not, raises Stale unless they
        take the place of that.
        """
        if fenced:
            self._fence()  # also where nothing changes: who says so must know
        paths = list(wanted)
        steps: list[Step] = []
        for path, node in zip(paths, self._tree.get(paths), strict=True):
            data = wanted[path]
            if instead_of is not None:
                stored = {} if node is None else decoded(node, dict[str, object], path)
                require_same(path, stored, dict(instead_of[path]))
            if data is not None:
                made = Create(path, data) if node is None else Change(path, data, node.version)
                steps.append(made)
            elif node is not None:
                steps.append(Remove(path, node.version))
        try:
            if steps:
                self._commit(steps, kind, fenced=fenced)
        except Conflict as e:
            if instead_of is None:
                raise
            raise Stale(e.step.path) from e

    def _commit(self, steps: Sequence[Step], kind: str, *, fenced: bool = True) -> None:
        """With the fence, and told to all brokers as a change of that kind.

        Raises Conflict where somebody else changed it, which only states' and deletions' owners do.
        """
        size = sum(map(_bytes_of, steps))
        if size > COMMIT_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a change of {size} bytes of metadata; {COMMIT_BYTES_MAX} at once are allowed",
            )
        fence = self._fence() if fenced else ()
        try:
            self._tree.commit([*fence, *steps, Touch(kind, b"")])
        except Conflict as e:
            if e.step in fence:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, f"this broker is no longer the controller: {e}"
                ) from e
            raise


def _bytes_of(step: Step) -> int:
    besides = CREATE_BYTES if isinstance(step, Create) else STEP_BYTES
    return len(step.path) + len(getattr(step, "data", b"")) + besides


def _create_unless_there(tree: Tree, path: str, data: bytes) -> None:
    try:
        tree.commit([Create(path, data)])
    except Conflict:
        if tree.get([path])[0] is None:
            raise
