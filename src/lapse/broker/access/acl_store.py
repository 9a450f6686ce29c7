"""ACLs and SCRAM credentials of a running broker: kept in the store, decided by in memory.

A change goes to the store first, then replaces the state in memory in one assignment: a concurrent
check uses either the old or the new state. Called by the handlers of the ACL and credential calls;
all code that authenticates or authorizes a client uses `authorizer` and `credential`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.base.security_settings import SecurityConfig
from lapse.broker.logs.changing import Changing
from lapse.broker.logs.disk import DiskThreads
from lapse.metadata.store import (
    SECRET_BYTES,
    UNKNOWN_USERS,
    MetadataStore,
    not_stored,
)
from lapse.security.acls import (
    AclBinding,
    AclFilter,
    Created,
    Deleted,
    create_acls,
    delete_acls,
    describe_acls,
)
from lapse.security.authorizer import (
    AclAuthorizer,
    AclSettings,
    AllowAll,
    Authorizer,
    parse_super_users,
)
from lapse.security.scram import (
    Credentials,
    ScramCredential,
    ScramMechanism,
    UnknownUsers,
)

# Kafka's own, and the one before it, whose settings are the same.
AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)


class Access:
    """Who may come in, and do what.

    Attributes:
        authorizer: by the bindings of now; `AllowAll` where none is configured.
        credentials: SCRAM's, of now.
        unknown: credentials of users that do not exist.
        unsure: called where nobody knows whether a change was stored; `reread` is due then.
    """

    def __init__(self, store: MetadataStore, disk: DiskThreads, security: SecurityConfig) -> None:
        self._store, self._disk = store, disk
        self._changing = Changing(self.load)
        self.unsure: Callable[[], None] = lambda: None
        self._settings = acl_settings(security)
        self._bindings: frozenset[AclBinding] = frozenset()
        self.authorizer: Authorizer = AllowAll()
        self.credentials: Credentials = {}
        self.unknown = UnknownUsers(b"")

    @property
    def is_restricted(self) -> bool:
        """Whether ACLs are wanted."""
        return self._settings is not None

    async def load(self) -> None:
        """Read the store."""
        bindings = await self._disk.run(self._store.acls)
        self.credentials = await self._disk.run(self._store.credentials)
        key = await self._disk.run(
            self._store.secret_of, UNKNOWN_USERS, lambda: secrets.token_bytes(SECRET_BYTES)
        )
        self.unknown = UnknownUsers(key)
        self._install(bindings)

    async def reread(self) -> None:
        """Have in force what is stored."""
        await self._changing.reread()

    def _install(self, bindings: frozenset[AclBinding]) -> None:
        self._bindings = bindings
        if self._settings is not None:
            self.authorizer = AclAuthorizer(bindings, self._settings)

    # --- ACLs -----------------------------------------------------------------------------------

    async def create_acls(self, wanted: list[AclBinding]) -> Created:
        """Add bindings, each judged alone; in force at the return. Raises KafkaError."""

        async def made() -> Created:
            self._require_authorizer()
            created = create_acls(self._bindings, wanted)
            await self._store_acls(created.bindings)
            return created

        return await self._changing.change("ACLs", made)

    async def delete_acls(self, filters: list[AclFilter]) -> Deleted:
        """Take bindings away; in force at the return. Raises KafkaError."""

        async def made() -> Deleted:
            self._require_authorizer()
            deleted = delete_acls(self._bindings, filters)
            await self._store_acls(deleted.bindings)
            return deleted

        return await self._changing.change("ACLs", made)

    def describe_acls(self, wanted: AclFilter) -> tuple[AclBinding, ...]:
        """The bindings that a filter means; raises KafkaError."""
        self._require_authorizer()
        return describe_acls(self._bindings, wanted)

    def _require_authorizer(self) -> None:
        if not self.is_restricted:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")

    async def _store_acls(self, bindings: frozenset[AclBinding]) -> None:
        before = self._bindings  # also where they stay: only the controller can tell
        await self._durably(
            lambda: self._store.change_acls(bindings - before, before - bindings), "ACLs"
        )
        self._install(bindings)

    # --- credentials ----------------------------------------------------------------------------

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """A user's, if there is one."""
        return self.credentials.get((user, mechanism))

    async def change_credentials(
        self, changes: Mapping[tuple[str, ScramMechanism], ScramCredential | None]
    ) -> None:
        """Set credentials, or take those that are None away; in force at the return.

        Raises KAFKA_STORAGE_ERROR, and then nothing changed.
        """

        async def made() -> None:
            await self._durably(lambda: self._store.change_credentials(changes), "credentials")
            after = {**self.credentials, **changes}
            self.credentials = {key: kept for key, kept in after.items() if kept is not None}

        await self._changing.change("credentials", made)

    async def _durably(self, change: Callable[[], None], what: str) -> None:
        try:
            await self._disk.run(change)
        except StorageError as e:
            self._changing.set_unsure()
            self.unsure()
            raise not_stored(what, e) from e


def acl_settings(security: SecurityConfig) -> AclSettings | None:
    """What decides besides bindings; None where there is no authorizer. Raises ConfigError."""
    name = security.authorizer_class_name
    super_users = parse_super_users(security.super_users)
    if not name:
        return None
    if name not in AUTHORIZERS:
        raise ConfigError(f"authorizer.class.name={name}: allowed is {AUTHORIZERS[0]}")
    return AclSettings(super_users, security.allow_everyone_if_no_acl_found)
