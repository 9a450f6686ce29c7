"""What any `Tree` does: the double in memory and ZooKeeper must not differ in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

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

Connect = Callable[[], Tree]
WAIT_SECONDS = 60  # nobody waits so long for what comes


@dataclass
class Unhashable:
    called: bool = False

    def __call__(self) -> None:
        self.called = True


def fails() -> None:
    raise RuntimeError("a bug of who watches")


def wait_for_all_before(tree: Tree, other: Tree) -> None:
    """Until all are called that a session had to tell of changes so far: it tells in order."""
    if other.get(["/last"]) == [None]:
        other.commit([Create("/last", b"")])
    last = threading.Event()
    tree.watch(["/last"], last.set)
    other.commit([Touch("/last", b"")])
    assert last.wait(WAIT_SECONDS)


class TreeContract:
    """Subclasses have a fixture `connect` that begins a session with one and the same tree."""

    def test_a_node_has_data_and_a_version(self, connect: Connect) -> None:
        tree = connect()
        assert tree.get(["/a", "/b"]) == [None, None]
        tree.commit([Create("/a", b"1")])
        tree.commit([Change("/a", b"2", 0)])
        tree.commit([Change("/a", b"", 1)])
        assert tree.get(["/b", "/a"]) == [None, Node(b"", 2)]

    def test_nodes_lie_below_others(self, connect: Connect) -> None:
        tree = connect()
        tree.commit([Create("/a", b""), Create("/a/c", b""), Create("/a/b", b"")])
        tree.commit([Create("/a/b/below", b"")])
        assert tree.children("/a") == ["b", "c"]
        assert (tree.children("/a/c"), tree.children("/nowhere")) == ([], [])
        assert "a" in tree.children("/")

    @pytest.mark.parametrize(
        "step",
        [
            Create("/a", b""),
            Create("/nowhere/b", b""),
            Change("/a", b"", 1),
            Change("/b", b"", 0),
            Touch("/b", b""),
            Remove("/a", 1),
            Remove("/b", 0),
            Remove("/a", 0),
            Check("/a", 1),
            Check("/b", 0),
        ],
    )
    def test_steps_are_done_together_or_not_at_all(self, connect: Connect, step: Step) -> None:
        tree = connect()
        tree.commit([Create("/a", b"before"), Create("/a/below", b"")])
        with pytest.raises(Conflict) as refused:
            tree.commit([Create("/new", b""), Change("/a/below", b"after", 0), step])
        assert refused.value.step == step
        assert tree.get(["/a", "/a/below", "/new", "/b"]) == [
            Node(b"before", 0), Node(b"", 0), None, None,
        ]  # fmt: skip

    def test_a_step_sees_those_before_it(self, connect: Connect) -> None:
        tree = connect()
        tree.commit(
            [Create("/a", b"1"), Change("/a", b"2", 0), Check("/a", 1), Create("/a/b", b""),
             Remove("/a/b", 0)]
        )  # fmt: skip
        assert (tree.get(["/a"]), tree.children("/a")) == ([Node(b"2", 1)], [])

    def test_a_node_that_was_removed_begins_anew(self, connect: Connect) -> None:
        tree = connect()
        tree.commit([Create("/a", b"1"), Change("/a", b"2", 0)])
        tree.commit([Remove("/a", 1)])
        tree.commit([Create("/a", b"3")])
        assert tree.get(["/a"]) == [Node(b"3", 0)]

    def test_a_node_goes_with_its_session(self, connect: Connect) -> None:
        one, other = connect(), connect()
        assert one.session != other.session
        one.commit([Create("/mine", b"", of_session=True), Create("/stays", b"")])
        assert other.owner("/mine") == one.session
        assert (other.owner("/stays"), other.owner("/nowhere")) == (None, None)
        with pytest.raises(Conflict):
            other.commit([Create("/mine/below", b"")])
        one.close()
        assert other.get(["/mine", "/stays"]) == [None, Node(b"", 0)]

    def test_of_many_who_change_a_version_one_succeeds(self, connect: Connect) -> None:
        trees = [connect() for _ in range(4)]
        trees[0].commit([Create("/count", b"0")])

        def count_up(tree: Tree) -> None:
            done = 0
            while done < 10:
                [node] = tree.get(["/count"])
                assert node is not None
                try:
                    tree.commit([Change("/count", b"%d" % (int(node.data) + 1), node.version)])
                    done += 1
                except Conflict:
                    pass

        threads = [threading.Thread(target=count_up, args=(tree,)) for tree in trees]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trees[0].get(["/count"]) == [Node(b"40", 40)]

    # --- touching -------------------------------------------------------------------------------

    def test_a_node_is_touched_whatever_version_it_has(self, connect: Connect) -> None:
        tree = connect()
        tree.commit([Create("/a", b"1"), Create("/b", b"same"), Change("/a", b"2", 0)])
        tree.commit([Touch("/a", b"3"), Touch("/b", b"same")])
        assert tree.get(["/a", "/b"]) == [Node(b"3", 2), Node(b"same", 1)]
        tree.commit([Touch("/a", b"4"), Check("/a", 3), Touch("/a", b"5")])
        assert tree.get(["/a"]) == [Node(b"5", 4)]

    def test_a_touch_is_undone_with_the_other_steps(self, connect: Connect) -> None:
        tree = connect()
        tree.commit([Create("/a", b"1")])
        with pytest.raises(Conflict) as refused:
            tree.commit([Touch("/a", b"2"), Check("/a", 0)])
        assert refused.value.step == Check("/a", 0)
        assert tree.get(["/a"]) == [Node(b"1", 0)]

    def test_a_node_that_is_touched_stays_its_sessions(self, connect: Connect) -> None:
        one, other = connect(), connect()
        one.commit([Create("/mine", b"", of_session=True)])
        other.commit([Touch("/mine", b"")])
        assert other.owner("/mine") == one.session

    # --- watching -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("path", "step"),
        [
            ("/a", Change("/a", b"2", 0)),
            ("/a", Touch("/a", b"1")),
            ("/a", Create("/a/c", b"")),
            ("/a", Create("/a/mine", b"", of_session=True)),
            ("/a", Remove("/a/b", 0)),
            ("/a/b", Remove("/a/b", 0)),
            ("/new", Create("/new", b"")),
            ("/a/b/new", Create("/a/b/new", b"")),
            ("/", Create("/new", b"")),
        ],
    )
    def test_who_watches_is_called_after_a_change(
        self, connect: Connect, path: str, step: Step
    ) -> None:
        tree, other = connect(), connect()
        other.commit([Create("/a", b"1"), Create("/a/b", b"")])
        changed = threading.Event()
        tree.watch(["/nowhere", path], changed.set)
        assert not changed.is_set()
        other.commit([step])
        assert changed.wait(WAIT_SECONDS)

    def test_who_watches_is_called_after_a_change_of_its_own(self, connect: Connect) -> None:
        tree = connect()
        changed = threading.Event()
        tree.watch(["/a"], changed.set)
        tree.commit([Create("/a", b"")])
        assert changed.wait(WAIT_SECONDS)

    def test_who_watches_is_called_when_a_node_goes_with_its_session(
        self, connect: Connect
    ) -> None:
        """Both who watches the node, and who watches the one that it is below."""
        tree, other = connect(), connect()
        other.commit([Create("/a", b""), Create("/a/mine", b"", of_session=True)])
        gone, one_less = threading.Event(), threading.Event()
        tree.watch(["/a/mine"], gone.set)
        tree.watch(["/a"], one_less.set)
        other.close()
        assert gone.wait(WAIT_SECONDS)
        assert one_less.wait(WAIT_SECONDS)
        assert tree.children("/a") == []

    def test_who_was_called_watches_again(self, connect: Connect) -> None:
        tree, other = connect(), connect()
        other.commit([Create("/a", b"")])
        changed = threading.Event()
        for _ in range(3):
            changed.clear()
            tree.watch(["/a"], changed.set)
            other.commit([Touch("/a", b"")])
            assert changed.wait(WAIT_SECONDS)

    def test_nobody_is_called_for_what_is_not_watched(self, connect: Connect) -> None:
        tree, other = connect(), connect()
        other.commit([Create("/a", b""), Create("/a/b", b""), Create("/a/b/c", b"")])
        changed = threading.Event()
        tree.watch(["/a"], changed.set)
        other.commit([Check("/a", 0), Touch("/a/b", b"data of a child")])
        other.commit([Touch("/a/b/c", b"data of a grandchild"), Create("/a/b/d", b"")])
        other.commit([Remove("/a/b/c", 1), Create("/ab", b""), Touch("/", b"")])
        with pytest.raises(Conflict):
            other.commit([Touch("/a", b"refused"), Remove("/a", 1)])
        wait_for_all_before(tree, other)
        assert not changed.is_set()

    def test_who_watches_twice_is_kept_once(self, connect: Connect) -> None:
        """Or they would pile up where nothing changes."""
        tree, other = connect(), connect()
        other.commit([Create("/a", b"")])
        calls = threading.Semaphore(0)
        for _ in range(3):
            tree.watch(["/a"], calls.release)  # another object each time, but equal
        other.commit([Touch("/a", b"")])
        wait_for_all_before(tree, other)
        assert calls.acquire(blocking=False)
        assert not calls.acquire(blocking=False)

    def test_what_a_callback_raises_harms_nobody(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        tree, other = connect(), connect()
        changed = threading.Event()
        tree.watch(["/a"], fails)
        tree.watch(["/a"], changed.set)
        other.commit([Create("/a", b"")])
        assert changed.wait(WAIT_SECONDS)
        wait_for_all_before(tree, other)
        failed = {record.name for record in caplog.records if record.exc_info}
        assert failed == {"lapse.metadata.tree"}

    def test_what_cannot_be_kept_once_is_refused(self, connect: Connect) -> None:
        tree = connect()
        with pytest.raises(TypeError):
            tree.watch(["/a"], Unhashable())
        assert tree.get(["/a"]) == [None]

    def test_nobody_is_called_or_answered_once_it_is_closed(self, connect: Connect) -> None:
        tree, other = connect(), connect()
        other.commit([Create("/a", b"")])
        called = threading.Event()
        tree.commit([Create("/mine", b"", of_session=True)])
        tree.watch(["/a", "/b", "/mine"], called.set)
        tree.close()
        other.commit([Touch("/a", b""), Create("/b", b"")])
        with pytest.raises(Unreachable):
            tree.watch(["/a"], called.set)
        assert not tree.is_connected
        assert not called.is_set()
