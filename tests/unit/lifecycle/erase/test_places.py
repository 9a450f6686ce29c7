"""Which files count, and which of them can hold no key."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lapse.base.clock import Clock
from lapse.base.fs import RealFs
from lapse.lifecycle.erase.places import (
    Home,
    ReplicaFile,
    belongs,
    is_segment,
    is_text,
    list_folder,
    list_replica,
    why_keyless,
)
from lapse.lifecycle.round.ledger import LedgerEntry, append
from lapse.log.facts import ReplicaFacts
from lapse.log.others import Others, write_others
from lapse.log.reserve import RESERVE, set_aside
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.replica import FIRST, written
from tests.support.lifecycle.rounds import NOW, compacted, make_logs
from tests.support.log.logs import env

HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "partition", "is_ours"),
    [
        ("t-0", None, True),
        ("t-0", 0, True),
        ("t-0", 1, False),
        ("t-a-0", None, False),
        (f"t-0.{HEX}-delete", None, True),
        (f"t-12.{HEX}-future", None, True),
        (f"t-12.{HEX}-stray", 12, True),
        (f"t-12.{HEX}-delete", 1, False),
        (f"tt-0.{HEX}-delete", None, False),
        ("t", None, False),
        ("t-0.x-moved", None, False),
    ],
)
def test_partitions_on_their_way_out_or_in_count_too(
    name: str, partition: int | None, is_ours: bool
) -> None:
    assert belongs(name, "t", partition) == is_ours


def test_a_name_that_kafka_cut_counts() -> None:
    topic, tail = "t" * 249, f"-0.{HEX}-delete"
    cut = topic[: 255 - len(tail)] + tail
    assert belongs(cut, topic, None)
    assert not belongs(cut[1:], topic, None)
    assert not belongs(cut, "u" + topic[1:], None)


def test_everything_below_the_partitions_and_beside_them_is_listed(tmp_path: Path) -> None:
    for path in ("t-0/" + FIRST, "t-0/.lapse/r1/a1/x", f"t-1.{HEX}-delete/y", "u-0/z", "meta"):
        written(tmp_path / path, b"1")
    (tmp_path / "t-0" / "linked").symlink_to(tmp_path / "u-0")
    (tmp_path / "t-0" / "loop").symlink_to(tmp_path / "t-0")
    listing = list_replica(tmp_path, "t", None)
    assert listing.partitions == ("t-0", f"t-1.{HEX}-delete")
    assert {place.path for place in listing.places} == {
        f"t-0/{FIRST}", "t-0/.lapse/r1/a1/x", "t-0/linked/z", f"t-1.{HEX}-delete/y", "meta"
    }  # fmt: skip
    assert {place.folder for place in listing.places} == {"t-0", f"t-1.{HEX}-delete", ""}
    assert all(place.state is not None and place.problem is None for place in listing.places)
    assert [p.path for p in list_replica(tmp_path, "t", 1).places] == ["meta", *_deleted(listing)]


def _deleted(listing: object) -> list[str]:
    return [p.path for p in listing.places if "delete" in p.folder]  # type: ignore[attr-defined]


def test_what_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    written(tmp_path / "t-0" / FIRST)
    (tmp_path / "t-0" / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "t-0" / "pipe")
    problems = {p.path: p.problem for p in list_replica(tmp_path, "t", None).places if p.problem}
    assert problems == {
        "t-0/dangling": "a link to what is not there",
        "t-0/pipe": "no ordinary file: not read",
    }


def test_a_link_to_itself_is_listed_with_the_reason(tmp_path: Path) -> None:
    """Whether it is a folder cannot be said; that ended the whole look."""
    for place in ("t-0", "."):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "loop").symlink_to("loop")
    listed = {place.path: place.problem for place in list_replica(tmp_path, "t", None).places}
    assert listed.keys() == {"loop", "t-0/loop"}
    assert all("cannot be looked at" in (problem or "") for problem in listed.values())


def test_which_directory_a_partition_is(tmp_path: Path) -> None:
    """By what it is, not by its path."""
    for replica in "ab":
        written(tmp_path / replica / "t-0" / FIRST)
    (tmp_path / "b" / "t-1").symlink_to(tmp_path / "a" / "t-0")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / f"t-1.{HEX}-delete").mkdir()
    a, b, link = (list_replica(tmp_path / name, "t", None) for name in ("a", "b", "link"))
    told = (tmp_path / "a" / "t-0").stat()
    assert a.homes == link.homes == (Home("t-0", told.st_dev, told.st_ino),)
    assert [home.folder for home in b.homes] == ["t-0", "t-1"]
    assert b.homes[1].inode == told.st_ino != b.homes[0].inode


@pytest.mark.parametrize(
    ("meta", "node_id"),
    [
        (b"version=1\ncluster.id=x\nnode.id=7\n", 7), (b"version=0\nbroker.id=8\n", 8),
        (b"version=1\n", None), (b"node.id=seven\n", None), (b"\xff", None), (None, None),
    ],
)  # fmt: skip
def test_whose_a_directory_is(meta: bytes | None, node_id: int | None, tmp_path: Path) -> None:
    if meta is not None:
        written(tmp_path / "meta.properties", meta)
    assert list_replica(tmp_path, "t", None).node_id == node_id


def test_a_name_that_is_not_utf_8_is_told_and_is_nobody_elses(tmp_path: Path) -> None:
    """No JSON has room for it, so its file stands in the way of a proof."""
    written(tmp_path / "t-0" / "\\xff.log", b"1")
    odd = os.fsencode(tmp_path / "t-0") + b"/\xff"
    for path in (odd + b".log", odd + b"dir/x"):
        written(Path(os.fsdecode(path)), b"1")
    problems = {place.path: place.problem for place in list_replica(tmp_path, "t", None).places}
    told = "has a name that is not UTF-8: not read"
    assert problems == {
        "t-0/\\xff.log": None, "t-0/\\xff.log/": told, "t-0/\\xffdir/x/": told
    }  # fmt: skip
    assert all(is_text(path) for path in problems)
    assert [is_text(text) for text in ("größe\n", os.fsdecode(odd))] == [True, False]


def test_a_brokers_socket_holds_nothing_and_stands_in_no_proofs_way(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "control.sock"))
    [place] = list_replica(tmp_path, "t", None).places
    assert place.problem is None
    assert "a socket" in (why_keyless(tmp_path, place) or "")


def test_a_directory_that_is_not_there_or_is_none_of_kafkas(tmp_path: Path) -> None:
    assert "cannot be listed" in (list_replica(tmp_path / "no", "t", None).problem or "")
    assert "no such directory" in (list_folder(tmp_path / "no").problem or "")
    assert not list_replica(tmp_path, "t", None).is_log_directory
    written(tmp_path / "meta.properties", b"version=1")
    assert list_replica(tmp_path, "t", None).is_log_directory


def test_of_a_scratch_folder_everything_counts(tmp_path: Path) -> None:
    written(tmp_path / "blockmgr" / "0c" / "shuffle_0_0_0.data", b"1")
    assert [p.path for p in list_folder(tmp_path).places] == ["blockmgr/0c/shuffle_0_0_0.data"]


@pytest.mark.parametrize(
    "path",
    [
        "t-0/00000000000000000000.index", "t-0/00000000000000000000.timeindex.deleted",
        "t-0/00000000000000000000.txnindex.swap", "t-0/00000000000000000007.snapshot",
        "t-0/leader-epoch-checkpoint", "t-0/partition.metadata", "meta.properties",
        "t-0/.lapse/r1/a1/00000000000000000000-offsets", "lapse-metadata.sqlite-wal",
    ],
)  # fmt: skip
def test_formats_without_room_for_a_key_are_told(path: str) -> None:
    assert why_keyless(Path("/"), place_of(path)) is not None


@pytest.mark.parametrize(
    "path",
    [
        "t-0/00000000000000000000.log", "t-0/00000000000000000000.log.deleted",
        "t-0/00000000000000000000.log.cleaned", "t-0/00000000000000000000.log.swap",
        "t-0/other.index", "t-0/deep/00000000000000000000.index", "00000000000000000000.index",
        "t-0/.lapse/r1/a1/00000000000000000000-records", "t-0/.lapse/ledger.old", "core.1234",
        RESERVE,
        "t-0/.lapse/ledger", "t-0/.lapse/00000000000000000000.summary", "t-0/.lapse/log-start",
        "t-0/.lapse/replicas",
    ],
)  # fmt: skip
def test_anything_else_is_searched_ours_too_where_they_do_not_parse(
    path: str, tmp_path: Path
) -> None:
    written(tmp_path / path, b"junk with user-4711 in it")
    assert why_keyless(tmp_path, place_of(path)) is None


def place_of(path: str) -> ReplicaFile:
    return ReplicaFile(path, "t-0" if "/" in path else "", None)


def test_our_own_files_are_told_once_they_were_read(tmp_path: Path) -> None:
    clock: Clock = ManualClock(NOW)
    make_logs(tmp_path, {"t": [("k", "v")]}, compacted(), clock)
    entry = LedgerEntry("r", 0, NOW, NOW, NOW, 0, 1, 1, ())
    append(RealFs(), tmp_path / "t-0", entry)
    write_others(RealFs(), tmp_path / "t-0", Others((ReplicaFacts(2, (), 0),), (3,)))
    set_aside(env(), tmp_path)
    told = {p.path: why_keyless(tmp_path, p) for p in list_replica(tmp_path, "t", None).places}
    assert "room" in (told[RESERVE] or "")
    [home] = list_replica(tmp_path, "t", None).homes
    assert (home.others, home.elsewhere) == ((2,), (3,))
    assert "replicas" in (told["t-0/.lapse/replicas"] or "")
    assert "ledger" in (told["t-0/.lapse/ledger"] or "")
    assert "summary" in (told["t-0/.lapse/00000000000000000000.summary"] or "")
    assert {path for path, what in told.items() if what is None} == {
        f"t-0/{FIRST}", "t-0/00000000000000000001.log"
    }  # fmt: skip


def test_segments_by_name() -> None:
    names = {
        FIRST: True, FIRST + ".deleted": True, "x/" + FIRST.replace(".log", "-records"): True,
        "x/" + FIRST.replace(".log", "-image"): True, ".lapse/cut-00000000000000000007-0.2": True,
        ".lapse/cut-00000000000000000007-99": True, ".lapse/cut-7-99": False,
        "dump.log.txt": False, "1-records": False, FIRST.replace(".log", ".index"): False,
    }  # fmt: skip
    assert {name: is_segment(name) for name in names} == names
