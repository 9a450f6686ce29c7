"""A `Tree` in a ZooKeeper ensemble (3.8 or newer), through kazoo.

kazoo runs two threads of its own. What it calls back there only notes what happened; none of its
recipes is used. Its client begins a new session by itself once the ensemble has given one up, and
keeps asking for ever while there is no connection: only callers here give up, after `wait_ms`.

Connections break, and then nobody knows whether a commit was done. It is looked up: all that its
steps make, change and remove is as they leave it, and of one moment. What others may write alike
does as well, for it is the same then; what must be told from theirs has to differ in its data. A
commit that was not done is sent again, and so is one that only checks and touches. Within one
session ZooKeeper does requests in order, so what an earlier connection has sent cannot come after.

A new connection may be to another server of the ensemble, and that one behind: a read would not see
what an earlier connection has committed. So each connection begins with a sync.

Watches do not outlive a connection: kazoo does not set them again, but calls all that it has when
the connection is lost or the session has ended, and forgets them. That is what `watch` promises.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError
from lapse.metadata.tree import (
    Change,
    Check,
    Conflict,
    Create,
    Node,
    Remove,
    Step,
    Touch,
    Unreachable,
    call_all,
)
from lapse.metadata.zookeeper_access import Access, TlsHandler

_log = logging.getLogger(__name__)
_kazoo = logging.getLogger("kazoo")
_kazoo.setLevel(logging.ERROR)  # it tells of each attempt to connect

T = TypeVar("T")

OPEN = Access()
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 0.05, 1.0  # between two attempts to connect
_NO_ANSWER = (
    ConnectionClosedError, ConnectionLoss, KazooTimeoutError, OperationTimeoutError,
    SessionExpiredError, SessionMovedError,
)  # fmt: skip
_NOT_DONE = (RolledBackError, RuntimeInconsistency)  # steps beside the one that was refused
_WHY = {
    NodeExistsError: "it is there already",
    NoNodeError: "it, or what it is below, is not there",
    BadVersionError: "it has another version",
    NotEmptyError: "there are nodes below it",
}


class ZooKeeperTree:
    """One session with an ensemble; see `metadata.tree.Tree`.

    Args:
        connect: as `zookeeper.connect`: host:port,host:port/path; the path is made if need be.
        session_ms: after how long without a sign of life the ensemble gives the session up.
        wait_ms: how long a call waits for an answer, by `clock`.
        access: how to get in.

    Raises ConfigError where `connect` is none, Unreachable where nobody answers in that time.
    """

    def __init__(
        self, connect: str, session_ms: int, wait_ms: int, clock: Clock, access: Access = OPEN
    ) -> None:
        self._clock = clock
        hosts, slash, root = connect.partition("/")
        self._root = (slash + root).rstrip("/")
        self._connect, self._wait_s = connect, wait_ms / 1000
        self._callbacks: list[Callable[[], None]] = []
        self._connected = threading.Event()  # set at the end, too: then nobody waits any longer
        self._closed = False
        self._lost = False
        self._connections, self._synced = 0, 0
        if {"", ".", ".."} & set(self._root.split("/")[1:]):
            raise _malformed(connect, f"{self._root} is no path")
        self._tls = None if access.tls is None else TlsHandler(access.tls)
        login = [] if access.login is None else [("digest", access.login.reveal())]
        try:
            self._client = KazooClient(
                hosts, logger=_kazoo, timeout=session_ms / 1000, handler=self._tls,
                auth_data=login, default_acl=CREATOR_ALL_ACL if access.sets_acl else None,
                connection_retry=KazooRetry(
                    max_tries=-1, delay=_RETRY_SECONDS, max_delay=_RETRY_SECONDS_MAX
                ),
            )  # fmt: skip
        except ValueError as e:
            raise _malformed(connect, str(e)) from e
        self._client.add_listener(self._noticed)
        try:
            self._client.start(timeout=self._wait_s)
            self._answered(self._make_root)
            if access.sets_acl:
                self._answered(self._close_to_others)
        except BaseException as e:
            self.close()
            if isinstance(e, KazooTimeoutError):
                raise self._unreachable() from e
            raise

    @property
    def session(self) -> int:
        known = self._client.client_id
        return 0 if known is None else int(known[0])

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set() and not self._closed

    def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
        def ask() -> list[Node | None]:
            asked = [self._client.get_async(self._root + path) for path in paths]
            return [self._node(one) for one in asked]

        return self._answered(ask)

    def children(self, path: str) -> Sequence[str]:
        def ask() -> list[str]:
            asked = self._client.get_children_async(self._path(path))
            try:
                return sorted(asked.get(timeout=self._wait_s))
            except NoNodeError:
                return []

        return self._answered(ask)

    def owner(self, path: str) -> int | None:
        def ask() -> int | None:
            found = self._client.exists_async(self._path(path)).get(timeout=self._wait_s)
            return None if found is None else found.ephemeralOwner or None

        return self._answered(ask)

    def commit(self, steps: Sequence[Step]) -> None:
        session, of_session = self.session, _is_of_session(steps)
        until = self._clock.monotonic() + self._wait_s
        cause: Exception | None = None
        while self._wait_for_connection(until) and (session == self.session or not of_session):
            try:
                if cause is None or not self._is_done(steps):
                    self._send(steps, until)
            except _NO_ANSWER as e:
                cause = e
            except NoAuthError as e:
                raise self._not_allowed() from e
            else:
                return
        raise self._unreachable() from cause

    def watch(self, paths: Sequence[str], callback: Callable[[], None]) -> None:
        watcher = _Watcher(self._tell, callback)
        hash(watcher)  # what cannot be hashed would end kazoo's thread

        def ask() -> None:
            asked = []
            for path in map(self._path, paths):
                asked.append(self._client.exists_async(path, watch=watcher))
                asked.append(self._client.get_children_async(path, watch=watcher))
            for one in asked:
                with contextlib.suppress(NoNodeError):  # the first of the two is told if it comes
                    one.get(timeout=self._wait_s)

        self._answered(ask)

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        self._closed = True
        self._connected.set()
        with contextlib.suppress(*_NO_ANSWER):
            self._client.stop()
        with contextlib.suppress(*_NO_ANSWER):
            self._client.close()

    # --- asking ---------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/"

    def _node(self, asked: Any) -> Node | None:
        try:
            data, stat = asked.get(timeout=self._wait_s)
        except NoNodeError:
            return None
        return Node(data or b"", stat.version)

    def _answered(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer; asking twice does no harm. Raises Unreachable."""
        until = self._clock.monotonic() + self._wait_s
        cause = None
        while self._wait_for_connection(until):
            try:
                self._sync()
                return ask()
            except _NO_ANSWER as e:
                cause = e
            except NoAuthError as e:
                raise self._not_allowed() from e
        raise self._unreachable() from cause

    def _sync(self) -> None:
        """Once for each connection: what it reads is no older than what was sent before."""
        connection = self._connections
        if self._synced < connection:
            self._client.sync_async(self._path("")).get(timeout=self._wait_s)
            self._synced = connection

    def _wait_for_connection(self, until: float) -> bool:
        left_s = until - self._clock.monotonic()
        return left_s > 0 and self._connected.wait(left_s) and not self._closed

    def _send(self, steps: Sequence[Step], until: float) -> None:
        sent = self._client.transaction()
        for step in steps:
            path = self._path(step.path)
            if isinstance(step, Create):
                sent.create(path, step.data, ephemeral=step.of_session)
            elif isinstance(step, Change):
                sent.set_data(path, step.data, step.version)
            elif isinstance(step, Touch):
                sent.set_data(path, step.data)
            elif isinstance(step, Remove):
                sent.delete(path, step.version)
            else:
                sent.check(path, step.version)
        left_s = max(until - self._clock.monotonic(), _RETRY_SECONDS)
        results = sent.commit_async().get(timeout=left_s)
        for step, result in zip(steps, results, strict=True):
            if isinstance(result, NoAuthError):
                raise result
            if isinstance(result, KazooException) and not isinstance(result, _NOT_DONE):
                raise Conflict(step, _WHY.get(type(result), repr(result)))

    def _is_done(self, steps: Sequence[Step]) -> bool:
        """Whether steps of which nobody knows are done, as far as the nodes tell.

        All that a step changes must be as it leaves it, and of one moment: another broker may have
        done the first of them alike, and the others otherwise. Where somebody has changed one of
        them since, they count as not done, and are refused when they are sent again: who gets a
        Conflict goes by what is stored.

        A Check changes nothing, and a Touch is done from any version to any: where there are no
        others, the steps count as not done, since doing them twice does no harm.
        """
        telling = [step for step in steps if not isinstance(step, Check | Touch)]
        if not telling:
            return False
        # Or a server tells what was.
        self._client.sync_async(self._path("")).get(timeout=self._wait_s)
        asked = [self._client.get_async(self._path(step.path)) for step in telling]
        moments = set()
        for step, one in zip(telling, asked, strict=True):
            try:
                data, stat = one.get(timeout=self._wait_s)
            except NoNodeError:
                if not isinstance(step, Remove):
                    return False
                continue
            if isinstance(step, Remove) or (data or b"", stat.version) != _left_by(step):
                return False
            moments.add(stat.mzxid)
        return len(moments) <= 1

    def _make_root(self) -> None:
        at = ""
        for part in self._root.split("/")[1:]:
            at += f"/{part}"
            acl = None if at == self._root else OPEN_ACL_UNSAFE  # others may have paths beside ours
            with contextlib.suppress(NodeExistsError):
                self._client.create_async(at, b"", acl).get(timeout=self._wait_s)

    def _close_to_others(self) -> None:
        """What is there already becomes ours alone, whoever was let in before.

        ZooKeeper puts in who we are, by login and certificate: the root's ACL says it.
        """
        self._client.set_acls_async(self._root, CREATOR_ALL_ACL).get(timeout=self._wait_s)
        ours, _ = self._client.get_acls_async(self._root).get(timeout=self._wait_s)
        above = [self._root]
        while above:
            asked = [(path, self._client.get_acls_async(path)) for path in above]
            closing, parents = [], []
            for path, acls in asked:
                with contextlib.suppress(NoNodeError):
                    found, stat = acls.get(timeout=self._wait_s)
                    if set(found) != set(ours):
                        closing.append(self._client.set_acls_async(path, CREATOR_ALL_ACL))
                    if stat.numChildren:
                        parents.append((path, self._client.get_children_async(path)))
            above = []
            for path, children in parents:
                with contextlib.suppress(NoNodeError):
                    above += [f"{path}/{name}" for name in children.get(timeout=self._wait_s)]
            for one in closing:
                with contextlib.suppress(NoNodeError):
                    one.get(timeout=self._wait_s)

    # --- the session ----------------------------------------------------------------------------

    def _tell(self, callback: Callable[[], None]) -> None:
        """In a thread of kazoo's."""
        if not self._closed:
            call_all([callback])

    def _noticed(self, state: str) -> None:
        """In a thread of kazoo's."""
        if self._closed:
            return
        if state == KazooState.CONNECTED:
            _log.info("ZooKeeper at %s answers", self._connect)
            self._connections += 1
            self._connected.set()
            began_anew, self._lost = self._lost, False
            if began_anew:
                _log.warning("ZooKeeper at %s has a new session of ours", self._connect)
                call_all(self._callbacks)
            return
        if self._connected.is_set():
            _log.warning("ZooKeeper at %s does not answer", self._connect)
        self._connected.clear()
        if self._is_closed():  # meanwhile: then nobody may wait
            self._connected.set()
        self._lost = self._lost or state == KazooState.LOST

    def _is_closed(self) -> bool:
        """Asked again: another thread may have closed it."""
        return self._closed

    def _unreachable(self) -> Unreachable:
        why = "" if self._tls is None or not self._tls.why else f": {self._tls.why}"
        return Unreachable(
            f"zookeeper.connect={self._connect}: no answer within {self._wait_s:g} s{why}"
        )

    def _not_allowed(self) -> Unreachable:
        return Unreachable(
            f"zookeeper.connect={self._connect}: what is there is for those who log in as others "
            "do: see lapse.zookeeper.login"
        )


@dataclass(frozen=True, slots=True)
class _Watcher:
    """What kazoo calls; it keeps those that are equal, by tree and callback, once for a path."""

    tell: Callable[[Callable[[], None]], None]
    callback: Callable[[], None]

    def __call__(self, _event: object) -> None:
        self.tell(self.callback)


def _left_by(step: Create | Change) -> tuple[bytes, int]:
    """A node's data and version once that is done."""
    return step.data, 0 if isinstance(step, Create) else step.version + 1


def _is_of_session(steps: Sequence[Step]) -> bool:
    return any(isinstance(step, Create) and step.of_session for step in steps)


def _malformed(connect: str, why: str) -> ConfigError:
    return ConfigError(f"zookeeper.connect={connect}: {why}; allowed is HOST:PORT,HOST:PORT/PATH")
