"""What any `Tree` does: the double in memory and ZooKeeper must not differ in it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lapse.metadata.tree import Change, Check, Conflict, Create, Node, Remove, Step, Tree

Connect = Callable[[], Tree]


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
