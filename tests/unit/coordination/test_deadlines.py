"""Deadlines by name."""

from __future__ import annotations

from lapse.coordination.deadlines import Deadlines


def test_what_is_due_comes_earliest_first_and_once() -> None:
    table: Deadlines[str] = Deadlines()
    for key, at_ms in (("late", 30), ("b", 20), ("a", 10), ("c", 20)):
        table.set(key, at_ms)
    assert table.next_ms == 10
    assert list(table.take_due(9)) == []
    assert list(table.take_due(20)) == ["a", "b", "c"]
    assert (list(table.take_due(20)), table.next_ms) == ([], 30)


def test_what_has_a_deadline() -> None:
    table: Deadlines[str] = Deadlines()
    table.set("a", 10)
    assert "a" in table
    assert "b" not in table
    assert list(table.take_due(10)) == ["a"]
    assert "a" not in table


def test_one_that_is_cleared_or_moved_on_meanwhile_is_not_given() -> None:
    table: Deadlines[str] = Deadlines()
    for key in "abc":
        table.set(key, 10)
    given = []
    for key in table.take_due(10):
        given.append(key)
        table.clear("b")
        table.set("c", 11)
    assert (given, table.next_ms) == (["a"], 11)


def test_what_is_set_for_later_meanwhile_waits_for_its_time() -> None:
    table: Deadlines[str] = Deadlines()
    table.set("a", 10)
    for key in table.take_due(10):
        table.set(key, 15)
    assert table.next_ms == 15
    assert list(table.take_due(15)) == ["a"]
    assert table.next_ms is None


def test_moving_one_on_leaves_the_question_early_and_never_late() -> None:
    table: Deadlines[str] = Deadlines()
    table.set("a", 10)
    table.set("b", 40)
    table.set("a", 30)
    assert table.next_ms == 10
    assert (list(table.take_due(10)), table.next_ms) == ([], 30)
    table.clear("a")
    assert table.next_ms == 30
    assert (list(table.take_due(30)), table.next_ms) == ([], 40)
    table.clear_all()
    assert table.next_ms is None


def test_all_move_with_their_clock() -> None:
    table: Deadlines[str] = Deadlines()
    table.move_all(5)
    table.set("a", 10)
    table.set("b", 20)
    table.move_all(-7)
    assert (table.next_ms, list(table.take_due(3)), table.next_ms) == (3, ["a"], 13)
