"""Orders in a folder, as they are shown: what is open, proven, late, and what cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.lifecycle.erase.order import Order, load_order
from lapse.lifecycle.erase.proof import NEVER_SEEN, NOT_PROVEN, PROVEN, REMAINS
from lapse.lifecycle.erase.sign import seal, unseal
from lapse.lifecycle.outlook import erasures
from lapse.lifecycle.outlook.erasures import Erasure, Erasures
from lapse.log.lock import LOCK
from tests.support.cli.unprivileged import unprivileged
from tests.support.lifecycle.erase.orders import LOWERED, SIGNER, give, part, report

NOW = 1_700_000_000_000
DAY = 86_400_000


def only(folder: Path) -> Erasure:
    [found] = Erasures(folder, 3).seen()
    return found


def test_without_a_folder_or_with_none_there_are_no_orders(tmp_path: Path) -> None:
    assert Erasures(None, 1).seen() == []
    assert Erasures(tmp_path / "none", 1).seen() == []
    (tmp_path / "orders" / "no-order").mkdir(parents=True)
    (tmp_path / "orders" / "file").write_text("x")
    assert Erasures(tmp_path / "orders", 1).seen() == []
    with pytest.raises(StorageError, match="file"):
        Erasures(tmp_path / "orders" / "file", 1).seen()


def test_an_order_that_was_just_given(tmp_path: Path) -> None:
    """How many keys, and nothing by which they could be tried."""
    one = part(keys=[b"a", b"b", b"c"], forced=LOWERED)
    give(tmp_path / "case-17", NOW, NOW + DAY, one)
    found = only(tmp_path)
    assert (found.order, found.broker, found.given_ms) == ("case-17", 3, NOW)
    assert (found.deadline_ms, found.holder, found.done_ms) == (NOW + DAY, None, None)
    [topic] = found.topics
    assert (topic.topic, topic.keys, topic.never_seen) == ("users", 3, 0)
    assert (topic.values_gone_ms, topic.done_ms, topic.proofs) == (None, None, ())
    assert topic.lowered == "max.compaction.lag.ms=1000"
    assert not any(h.sha256 in repr(found) for h in one.keys)
    assert (found.overdue_ms(NOW + DAY), found.overdue_ms(NOW + DAY + 7)) == (0, 7)


@pytest.mark.parametrize(
    ("values_ms", "all_ms", "verdict", "tombstones_too", "done_ms"),
    [
        (None, None, REMAINS, True, None),
        (NOW + 5, None, REMAINS, True, None),  # tombstones wait
        (NOW + 5, None, PROVEN, False, NOW + 5),  # which was not asked for
        (NOW + 5, NOW + 9, PROVEN, True, NOW + 9),
        (NOW + 5, NOW + 9, NEVER_SEEN, True, NOW + 9),
        (NOW + 5, NOW + 9, NOT_PROVEN, True, None),  # a replica was not given
        (None, None, PROVEN, True, None),  # found again since that proof
    ],
)
def test_done_is_what_proof_and_order_say(
    tmp_path: Path, values_ms: int | None, all_ms: int | None, verdict: str, tombstones_too: bool,
    done_ms: int | None,
) -> None:  # fmt: skip
    one = part(values_proven_ms=values_ms, proven_ms=all_ms)
    folder = give(tmp_path / "o", NOW, NOW + 7, one)
    report(folder, "users", NOW + 10, verdict, tombstones_too=tombstones_too)
    found = only(tmp_path)
    assert found.done_ms == found.topics[0].done_ms == done_ms
    assert found.topics[0].values_gone_ms == values_ms
    late_ms = (NOW + 20 if done_ms is None else done_ms) - (NOW + 7)
    assert found.overdue_ms(NOW + 20) == max(late_ms, 0)


def test_without_a_report_nothing_is_proven(tmp_path: Path) -> None:
    """An order notes a proof before the file is written."""
    give(tmp_path / "o", NOW, None, part(values_proven_ms=NOW, proven_ms=NOW))
    assert only(tmp_path).done_ms is None
    assert only(tmp_path).overdue_ms(NOW + 10**12) == 0, "there is no deadline"


def test_all_topics_must_be_proven(tmp_path: Path) -> None:
    folder = give(
        tmp_path / "o", NOW, None,
        part(values_proven_ms=NOW, proven_ms=NOW + 1),
        part("logins", proven_ms=NOW + 3, values_proven_ms=NOW),
    )  # fmt: skip
    report(folder, "users", NOW + 4)
    assert only(tmp_path).done_ms is None
    report(folder, "logins", NOW + 4)
    assert only(tmp_path).done_ms == NOW + 3


def test_the_newest_report_is_by_number_and_counts(tmp_path: Path) -> None:
    folder = give(tmp_path / "o", NOW, None, part(values_proven_ms=NOW, proven_ms=NOW))
    for number, verdict in ((1, REMAINS), (2, REMAINS), (10, PROVEN)):
        report(folder, "users", NOW + number, verdict, number=number)
    report(folder, "other", NOW)
    (folder / "users.proof-x.json").write_text("no report of ours")
    [topic] = only(tmp_path).topics
    assert [one.file for one in topic.proofs] == [
        "users.proof-10.json", "users.proof-2.json", "users.proof.json",
    ]  # fmt: skip
    assert topic.proofs[0].ended_ms == NOW + 10
    assert topic.done_ms == NOW


def test_open_ones_come_first_by_their_deadline(tmp_path: Path) -> None:
    done = part(values_proven_ms=NOW, proven_ms=NOW)
    report(give(tmp_path / "done", NOW, NOW + 1, done), "users", NOW)
    give(tmp_path / "late", NOW, NOW + 9)
    give(tmp_path / "none", NOW, None)
    give(tmp_path / "soon", NOW, NOW + 2)
    assert [one.order for one in Erasures(tmp_path, 1).seen()] == ["soon", "late", "none", "done"]


def test_of_very_many_the_oldest_proven_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open, or cannot be read, is shown however old it is."""
    monkeypatch.setattr(erasures, "ORDERS_MAX", 3)
    done = part(values_proven_ms=NOW, proven_ms=NOW)
    give(tmp_path / "open", NOW - 9, None)
    for number in range(4):
        report(give(tmp_path / f"o{number}", NOW + number, None, done), "users", NOW)
    shown = Erasures(tmp_path, 1).seen()
    assert [(one.order, one.left_out) for one in shown] == [("open", 2), ("o3", 2), ("o2", 2)]
    (tmp_path / "o0" / "order.json").write_text("{")
    assert [one.order for one in Erasures(tmp_path, 1).seen()] == ["o0", "open", "o3"]
    monkeypatch.setattr(erasures, "ORDERS_MAX", 1)
    assert [one.order for one in Erasures(tmp_path, 1).seen()] == ["o0", "open"]
    monkeypatch.setattr(erasures, "ORDERS_MAX", 5)
    assert {one.left_out for one in Erasures(tmp_path, 1).seen()} == {0}


def test_what_can_no_longer_be_read_is_told_as_it_was(tmp_path: Path) -> None:
    folder = give(tmp_path / "o", NOW, NOW + 7)
    known = Erasures(tmp_path, 1)
    [before] = known.seen()
    (folder / "order.json").write_text("{")
    [found] = known.seen()
    assert "no order of erasure" in found.trouble
    assert found.is_open
    assert (found.deadline_ms, found.topics) == (before.deadline_ms, before.topics)
    [unknown] = Erasures(tmp_path, 1).seen()
    assert not unknown.is_open
    assert (unknown.deadline_ms, unknown.topics) == (None, ())


def test_what_cannot_be_read_is_named_and_hides_no_other(tmp_path: Path) -> None:
    give(tmp_path / "good", NOW, None)
    (give(tmp_path / "cut", NOW, None) / "order.json").write_text('{"format":')
    bad = give(tmp_path / "proof", NOW, None, part(values_proven_ms=NOW, proven_ms=NOW))
    (bad / "users.proof.json").write_bytes(b"\xff\n\xff\n")
    found = {one.order: one for one in Erasures(tmp_path, 1).seen()}
    assert "no order of erasure" in found["cut"].trouble
    assert str(tmp_path / "cut") in found["cut"].trouble
    assert found["good"].trouble == found["proof"].trouble == ""
    [unread] = found["proof"].topics[0].proofs
    assert (unread.verdict, found["proof"].done_ms) == ("", None)


def test_another_users_order_is_named(tmp_path: Path) -> None:
    """Orders are their owner's alone."""
    with unprivileged(give(tmp_path / "o", NOW, None) / "order.json"):
        trouble = only(tmp_path).trouble
    assert "order.json" in trouble
    assert "ermission" in trouble


def test_a_folder_that_nobody_else_may_enter_is_named(tmp_path: Path) -> None:
    give(tmp_path / "good", NOW, None)
    with unprivileged(give(tmp_path / "o", NOW, None)):
        found = {one.order: one.trouble for one in Erasures(tmp_path, 1).seen()}
    assert "ermission" in found["o"]
    assert found["good"] == ""


def test_who_is_at_work_is_named(tmp_path: Path) -> None:
    folder = give(tmp_path / "o", NOW, None)
    code = (
        "import sys, fcntl\n"
        "f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, folder / LOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert only(tmp_path).holder == holder.pid
    assert only(tmp_path).holder is None


def test_what_has_changed_is_read_again_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape every few seconds does not parse the hashes of a million keys."""
    reads: list[Path] = []

    def load(folder: Path) -> Order | None:
        reads.append(folder)
        return load_order(folder)

    monkeypatch.setattr(erasures, "load_order", load)
    folder = give(tmp_path / "o", NOW, None)
    shown = Erasures(tmp_path, 1)
    assert shown.seen() == shown.seen()
    assert len(reads) == 1
    give(folder, NOW, NOW + 1)
    report(folder, "users", NOW, REMAINS)
    assert shown.seen()[0].deadline_ms == NOW + 1
    assert shown.seen()[0].topics[0].proofs[0].verdict == REMAINS
    assert len(reads) == 2
    report(folder, "users", NOW + 10**9, PROVEN)
    assert shown.seen()[0].topics[0].proofs[0].verdict == PROVEN


def test_a_proof_is_handed_out_as_it_is(tmp_path: Path) -> None:
    folder = give(tmp_path / "case 17", NOW, None)
    path = report(folder, "users", NOW, number=2)
    found = Erasures(tmp_path, 1).proof("case 17/users.proof-2.json", "users")
    assert found is not None
    assert found.encode() == path.read_bytes()
    assert unseal(found.encode(), "found").public_key


@pytest.mark.parametrize(
    "file",
    [
        "o/order.json", "o/users.proof-2.json", "o/other.proof.json", "../o/users.proof.json",
        "o/../o/users.proof.json", "users.proof.json", "/users.proof.json", "o/./users.proof.json",
        "o//users.proof.json", "none/users.proof.json", "", "o/", "o/users.proof.json\n",
    ],
)  # fmt: skip
def test_nothing_else_is(tmp_path: Path, file: str) -> None:
    """Not the order, another topic's, nor what lies elsewhere."""
    orders = tmp_path / "orders"
    folder = give(orders / "o", NOW, None, part(), part("other"))
    for topic in ("users", "other"):
        report(folder, topic, NOW)
    report(tmp_path, "users", NOW)
    shown = Erasures(orders, 1)
    assert shown.proof("o/users.proof.json", "users") is not None
    assert shown.proof(file, "users") is None
    assert Erasures(None, 1).proof("o/users.proof.json", "users") is None


def test_one_that_is_too_large_is_told_where_to_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = give(tmp_path / "o", NOW, None)
    size = os.stat(report(folder, "users", NOW)).st_size
    monkeypatch.setattr(erasures, "PROOF_BYTES_MAX", size)
    assert Erasures(tmp_path, 1).proof("o/users.proof.json", "users")
    monkeypatch.setattr(erasures, "PROOF_BYTES_MAX", size - 1)
    with pytest.raises(StorageError, match="take it from there"):
        Erasures(tmp_path, 1).proof("o/users.proof.json", "users")


def test_who_cannot_check_a_signature_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker alone has no cryptography; it counts nothing as proven, and says why."""
    folder = give(tmp_path / "o", NOW, None, part(values_proven_ms=NOW, proven_ms=NOW))
    monkeypatch.delitem(sys.modules, "lapse.lifecycle.erase.sign")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert only(tmp_path).trouble == ""  # there is no proof to check
    report(folder, "users", NOW)
    found = only(tmp_path)
    assert "pip install 'lapse[erase]'" in found.trouble
    assert found.done_ms is None


def test_a_report_that_was_changed_proves_nothing(tmp_path: Path) -> None:
    """Nothing is called gone because a file says so that is not as it was signed."""
    folder = give(tmp_path / "o", NOW, None, part(values_proven_ms=NOW, proven_ms=NOW))
    path = report(folder, "users", NOW, REMAINS)
    path.write_bytes(path.read_bytes().replace(REMAINS.encode(), PROVEN.encode()))
    [topic] = only(tmp_path).topics
    assert (topic.proofs[0].verdict, topic.done_ms) == ("", None)


@pytest.mark.parametrize("name", ["order.json", "users.proof.json", LOCK])
@pytest.mark.parametrize("sort", ["link", "pipe", "folder"])
def test_only_ordinary_files_are_read(tmp_path: Path, name: str, sort: str) -> None:
    """Who writes to the folder has the broker read nothing else, and wait for nothing."""
    orders, secret = tmp_path / "orders", tmp_path / "secret"
    folder = give(orders / "o", NOW, None)
    secret.write_text("{}")
    path = folder / name
    path.unlink(missing_ok=True)
    if sort == "link":
        path.symlink_to(secret)
    elif sort == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    found, shown = only(orders), Erasures(orders, 3)
    assert str(path) in found.trouble or (name == LOCK and found.holder is None)
    if name == "users.proof.json":
        with pytest.raises(StorageError, match=name):
            shown.proof(f"o/{name}", "users")


@pytest.mark.parametrize("name", ["order.json", "users.proof.json"])
def test_what_is_nested_too_deeply_is_no_order_and_no_proof(tmp_path: Path, name: str) -> None:
    folder = give(tmp_path / "o", NOW, None)
    deep = b'{"x":' + b"[" * 1_000_000
    (folder / name).write_bytes(seal(deep, SIGNER) if name != "order.json" else deep)
    found = only(tmp_path)
    if name == "order.json":
        assert "no order of erasure" in found.trouble
    else:
        assert found.topics[0].proofs[0].verdict == ""


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Holes cost whoever makes them nothing."""
    give(tmp_path / "good", NOW, None)
    bad = give(tmp_path / "bad", NOW, None, part(values_proven_ms=NOW, proven_ms=NOW))
    os.truncate(report(bad, "users", NOW), 1 << 40)
    assert {one.order: one.done_ms for one in Erasures(tmp_path, 1).seen()}["bad"] is None
    os.truncate(bad / "order.json", 1 << 40)
    found = {one.order: one.trouble for one in Erasures(tmp_path, 1).seen()}
    assert "larger than" in found["bad"]
    assert found["good"] == ""


def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    folder = give(tmp_path / "o", NOW, None)
    report(folder, "users", NOW)
    shown = Erasures(tmp_path, 1)
    assert shown.seen()[0].topics[0].proofs
    (folder / "users.proof.json").unlink()
    assert shown.seen()[0].topics[0].proofs == ()
    (folder / "order.json").unlink()
    assert shown.seen() == []
    report(give(folder, NOW + 1, None), "users", NOW + 1)
    [found] = shown.seen()
    assert (found.given_ms, len(found.topics[0].proofs)) == (NOW + 1, 1)
