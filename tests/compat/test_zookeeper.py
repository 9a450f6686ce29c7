"""A real ZooKeeper as the tree of a cluster's metadata, also while it stands still or dies."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from kazoo.client import KazooClient, KazooState

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode, KafkaError
from lapse.metadata.partition_states import StateChange, first_state, with_isr
from lapse.metadata.store import MetadataStore, TopicRecord
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
    Unreachable,
)
from lapse.metadata.tree_store import TreeStore
from lapse.metadata.zookeeper import ZooKeeperTree
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.metadata.line import Line
from tests.support.metadata.store_contract import BINDING, Open, StoreContract, record
from tests.support.metadata.tree_contract import WAIT_SECONDS, Connect, TreeContract, fails

SESSION_MS, WAIT_MS = 2000, 30_000
STEADY_MS = 10_000  # a session that no busy machine disturbs, whose watchers would be called
_numbers = count()


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path / "zookeeper") as running:
        yield running


class Sessions(ExitStack):
    """Sessions with a server, closed at the end."""

    def begin(
        self,
        server: ZooKeeperProcess | Line,
        path: str = "",
        wait_ms: int = WAIT_MS,
        session_ms: int = SESSION_MS,
    ) -> ZooKeeperTree:
        tree = ZooKeeperTree(server.connect + path, session_ms, wait_ms, SystemClock())
        self.callback(tree.close)
        return tree


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    with Sessions() as them:
        yield them


class TestTree(TreeContract):
    @pytest.fixture
    def connect(self, shared: ZooKeeperProcess, sessions: Sessions) -> Connect:
        path = f"/made/if/need/be/{next(_numbers)}"
        return lambda: sessions.begin(shared, path, session_ms=STEADY_MS)


class TestStore(StoreContract):
    @pytest.fixture
    def open_store(self, shared: ZooKeeperProcess, sessions: Sessions) -> Open:
        path = f"/store/{next(_numbers)}"

        def opened(new_cluster_id: str) -> MetadataStore:
            return TreeStore(sessions.begin(shared, path), list, lambda: new_cluster_id, 0)

        return opened


def test_an_old_controller_changes_nothing(shared: ZooKeeperProcess, sessions: Sessions) -> None:
    tree = sessions.begin(shared, "/fenced")
    tree.commit([Create("/epoch", b"")])
    store = TreeStore(tree, lambda: [Check("/epoch", 0)], lambda: "", 0)
    store.create_topics([record("before")])
    sessions.begin(shared, "/fenced").commit([Change("/epoch", b"", 0)])
    with pytest.raises(KafkaError) as refused:
        store.change_acls([BINDING], [])
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    assert not store.acls()


def test_nobody_there_is_said(tmp_path: Path, sessions: Sessions) -> None:
    never = ZooKeeperProcess(tmp_path)
    with pytest.raises(Unreachable, match=f"zookeeper.connect={never.connect}: no answer within"):
        sessions.begin(never, wait_ms=500)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(work())
        except Exception as e:  # noqa: BLE001
            ended.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


def test_who_asks_while_it_is_down_is_answered_when_it_is_back(
    zookeeper: ZooKeeperProcess, sessions: Sessions
) -> None:
    tree = sessions.begin(zookeeper)
    tree.commit([Create("/a", b"1")])
    zookeeper.kill()
    reader, read = in_thread(lambda: tree.get(["/a"]))
    writer, written = in_thread(lambda: tree.commit([Change("/a", b"2", 0)]))
    zookeeper.start()
    reader.join()
    writer.join()
    assert written == [None]
    assert read in ([[Node(b"1", 0)]], [[Node(b"2", 1)]])
    assert tree.get(["/a"]) == [Node(b"2", 1)]


def test_a_new_connection_begins_with_a_sync(
    zookeeper: ZooKeeperProcess, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be to a server of the ensemble that is behind what an earlier one has committed."""
    synced: list[str] = []
    sync = KazooClient.sync_async

    def noted(client: KazooClient, path: str) -> object:
        synced.append(path)
        return sync(client, path)

    monkeypatch.setattr(KazooClient, "sync_async", noted)
    tree = sessions.begin(zookeeper, "/synced", session_ms=STEADY_MS)
    for connection in (1, 2):
        for _ in range(3):
            tree.get(["/a"])
        assert synced == ["/synced"] * connection
        zookeeper.kill()
        zookeeper.start()


def test_who_cannot_wait_so_long_is_told(zookeeper: ZooKeeperProcess, sessions: Sessions) -> None:
    tree = sessions.begin(zookeeper, wait_ms=3000)  # it must be there within that time
    zookeeper.kill()
    for ask in (lambda: tree.get(["/"]), lambda: tree.commit([Create("/a", b"")])):
        with pytest.raises(Unreachable):
            ask()


def test_nobody_waits_for_an_answer_once_it_is_closed(
    zookeeper: ZooKeeperProcess, sessions: Sessions
) -> None:
    """A broker stops without one."""
    tree = sessions.begin(zookeeper, wait_ms=1 << 40)
    zookeeper.kill()
    asked = [in_thread(ask) for ask in (lambda: tree.get(["/"]), lambda: tree.commit([]))]
    tree.close()
    for thread, ended in asked:
        thread.join()
        assert isinstance(ended[0], Unreachable)


def test_who_is_closed_while_it_notices_has_nobody_wait(
    shared: ZooKeeperProcess, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = sessions.begin(shared)
    clear = tree._connected.clear

    def closed_meanwhile() -> None:
        tree.close()
        clear()

    monkeypatch.setattr(tree._connected, "clear", closed_meanwhile)
    tree._noticed(KazooState.SUSPENDED)
    assert tree._connected.is_set()
    with pytest.raises(Unreachable):
        tree.get(["/"])


def test_commits_are_done_once_however_often_it_dies(
    zookeeper: ZooKeeperProcess, sessions: Sessions, scaled: Callable[[int], int]
) -> None:
    """Each is acknowledged once, though nobody knew at times whether it was done."""
    tree = sessions.begin(zookeeper)
    tree.commit([Create("/count", b"0")])
    stop = threading.Event()

    def write() -> int:
        done = 0
        while not stop.is_set():
            tree.commit([Change("/count", b"%d" % (done + 1), done)])
            done += 1
        return done

    writer, ended = in_thread(write)
    for _ in range(scaled(60)):
        seen = at_least(tree, 1, writer)
        zookeeper.kill()
        zookeeper.start()
        at_least(tree, seen + 1, writer)
    stop.set()
    writer.join()
    [done] = ended
    assert tree.get(["/count"]) == [Node(b"%d" % done, done)]  # type: ignore[str-bytes-safe]


def at_least(tree: Tree, version: int, writer: threading.Thread) -> int:
    """Wait until so many commits are done; returns how many."""
    while True:
        assert writer.is_alive()
        [node] = tree.get(["/count"])
        assert node is not None
        if node.version >= version:
            return node.version


def test_a_session_that_was_given_up_is_noticed(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions
) -> None:
    """Its nodes are gone, and what it then makes belongs to the next one."""
    other = sessions.begin(shared, "/given-up")
    tree = sessions.begin(line, "/given-up")
    tree.commit([Create("/mine", b"", of_session=True), Create("/stays", b"")])
    before, began = tree.session, threading.Event()
    tree.when_session_ends(fails)
    tree.when_session_ends(began.set)
    line.hold()
    writer, written = in_thread(lambda: tree.commit([Create("/late", b"", of_session=True)]))
    while other.owner("/mine") is not None:
        pass  # the server waits for as long as a session lasts
    line.let_go()
    assert began.wait(WAIT_MS / 1000)
    writer.join()
    # It was asked for by a session that has ended: another one makes no node in its name.
    assert isinstance(written[0], Unreachable)
    assert tree.session != before
    tree.commit([Create("/again", b"", of_session=True)])
    assert other.owner("/again") == tree.session
    assert other.get(["/mine", "/stays", "/late"]) == [None, Node(b"", 0), None]


def test_a_commit_whose_answer_was_lost_is_looked_up(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions
) -> None:
    """Sent again as it was, it would be refused for what it has done itself."""
    other = sessions.begin(shared, "/unanswered")
    tree = sessions.begin(line, "/unanswered")
    tree.commit([Create("/a", b"1"), Create("/gone", b"")])
    for steps, path, done in (
        ([Check("/a", 0), Change("/a", b"2", 0)], "/a", Node(b"2", 1)),
        ([Create("/b", b"3"), Change("/a", b"4", 1)], "/b", Node(b"3", 0)),
        ([Touch("/gone", b"t"), Change("/a", b"5", 2)], "/gone", Node(b"t", 1)),
        ([Touch("/b", b"6"), Remove("/gone", 1)], "/gone", None),
    ):
        line.hold_answers()
        writer, written = in_thread(lambda steps=steps: tree.commit(steps))  # type: ignore[misc]
        while other.get([path]) != [done]:
            pass
        line.cut()
        writer.join()
        assert written == [None]
        assert other.get([path]) == [done]


def lose_next(tree: ZooKeeperTree, line: Line, meanwhile: Callable[[], object]) -> None:
    """The next commit gets lost on its way to the server; somebody else is there before it."""
    patch, send = pytest.MonkeyPatch(), tree._send

    def lost(steps: Sequence[Step], until: float) -> None:
        patch.undo()
        line.hold()
        sender, _ = in_thread(lambda: (meanwhile(), line.cut()))
        try:
            send(steps, until)
        finally:
            sender.join()

    patch.setattr(tree, "_send", lost)


def test_a_block_of_producer_ids_is_given_once_though_a_commit_is_lost(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions
) -> None:
    """What another broker wrote in its place looks like what was asked for."""
    tree, other = sessions.begin(line, "/ids"), sessions.begin(shared, "/ids")
    one, two = TreeStore(tree, list, lambda: "", 1), TreeStore(other, list, lambda: "", 2)
    blocks: list[range] = []
    lose_next(tree, line, lambda: blocks.append(two.allocate_producer_ids(10)))
    assert one.allocate_producer_ids(10) == range(10, 20)
    assert blocks == [range(10)]


@pytest.mark.parametrize("others", ["first", "first and then the second", "both apart"])
def test_steps_of_which_another_has_done_some_are_not_taken_for_done(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions, others: str
) -> None:
    root = "/alike/" + others.replace(" ", "-")
    tree, other = sessions.begin(line, root), sessions.begin(shared, root)
    other.commit([Create("/a", b""), Create("/b", b""), Create("/gone", b"")])
    first, second = Change("/a", b"a", 0), Change("/b", b"b", 0)
    commits: dict[str, list[list[Step]]] = {
        "first": [[first]],
        "first and then the second": [[first], [Change("/b", b"else", 0)]],
        "both apart": [[first], [second, Remove("/gone", 0)]],
    }

    def meanwhile() -> None:
        for steps in commits[others]:
            other.commit(steps)

    lose_next(tree, line, meanwhile)
    with pytest.raises(Conflict) as refused:
        tree.commit([first, second, Remove("/gone", 0)])
    assert refused.value.step == first


def test_a_topic_whose_states_change_before_its_making_is_answered_is_made(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions
) -> None:
    """It is not said to be there already: who asked has made it."""
    tree, other = sessions.begin(line, "/made"), sessions.begin(shared, "/made")
    store, leader = TreeStore(tree, list, lambda: "", 1), TreeStore(other, list, lambda: "", 2)
    state = first_state((1, 2))
    topic = TopicRecord("t", uuid.uuid4(), 1, {}, (state,))
    line.hold_answers()
    maker, made = in_thread(lambda: store.create_topics([topic]))
    while not leader.topics():
        pass
    leader.set_own_state(StateChange(topic.topic_id, 0, with_isr(state, (1,))))
    line.cut()
    maker.join()
    assert made == [None]
    with pytest.raises(KafkaError, match="topic t already exists"):
        store.create_topics([replace(topic, topic_id=uuid.uuid4())])


def test_a_commit_that_only_touches_is_sent_again(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions
) -> None:
    """Nothing tells whether it was done; doing it twice does no harm."""
    other = sessions.begin(shared, "/touched")
    tree = sessions.begin(line, "/touched")
    tree.commit([Create("/a", b""), Create("/b", b"")])
    line.hold_answers()
    writer, written = in_thread(lambda: tree.commit([Check("/b", 0), Touch("/a", b"1")]))
    while other.get(["/a"]) != [Node(b"1", 1)]:
        pass
    line.cut()
    writer.join()
    assert written == [None]
    [node] = other.get(["/a"])
    assert node is not None
    assert (node.data, node.version > 1) == (b"1", True)


@pytest.mark.parametrize("path", ["/there", "/nowhere"])
def test_who_watches_is_called_when_the_connection_is_lost(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions, path: str
) -> None:
    """And who then watches again is called after a change, though the session is the same."""
    root = f"/watched/{next(_numbers)}"
    other = sessions.begin(shared, root)
    tree = sessions.begin(line, root, session_ms=STEADY_MS)
    other.commit([Create("/there", b"")])
    before, lost, changed = tree.session, threading.Event(), threading.Event()
    tree.watch([path], fails)
    tree.watch([path], lost.set)
    line.cut()
    assert lost.wait(WAIT_SECONDS)
    tree.watch([path], changed.set)
    assert tree.session == before
    assert not changed.is_set()
    other.commit([Create(path + "/below" if path == "/there" else path, b"")])
    assert changed.wait(WAIT_SECONDS)


def test_who_watches_while_a_session_is_given_up_watches_in_the_next_one(
    shared: ZooKeeperProcess, line: Line, sessions: Sessions
) -> None:
    other = sessions.begin(shared, "/watched-anew")
    tree = sessions.begin(line, "/watched-anew")
    tree.commit([Create("/mine", b"", of_session=True), Create("/a", b"")])
    before, lost, changed = tree.session, threading.Event(), threading.Event()
    tree.watch(["/a"], lost.set)
    line.hold()
    assert lost.wait(WAIT_SECONDS)
    watcher, watched = in_thread(lambda: tree.watch(["/a"], changed.set))
    while other.owner("/mine") is not None:
        pass  # the server waits for as long as a session lasts
    line.let_go()
    watcher.join()
    assert watched == [None]
    assert tree.session != before
    other.commit([Touch("/a", b"")])
    assert changed.wait(WAIT_SECONDS)


def test_who_waits_to_be_called_while_it_is_closed_is_not(
    shared: ZooKeeperProcess, sessions: Sessions
) -> None:
    """Callbacks are called one after the other, so some may be waiting."""
    other = sessions.begin(shared, "/closing")
    tree = sessions.begin(shared, "/closing", session_ms=STEADY_MS)
    other.commit([Create("/a", b""), Create("/b", b"")])
    begun, go_on, late = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(WAIT_SECONDS)

    tree.watch(["/a"], slow)
    tree.watch(["/b"], late.set)
    other.commit([Touch("/a", b"")])
    assert begun.wait(WAIT_SECONDS)
    other.commit([Touch("/b", b"1")])
    while tree.get(["/b"]) != [Node(b"1", 1)]:
        pass  # what it has read of the server before this tells of the change
    closer, _ = in_thread(tree.close)
    while tree.is_connected:
        pass
    go_on.set()
    closer.join()
    assert not late.is_set()
