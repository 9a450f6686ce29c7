"""Findings to a verdict: what is proven, what remains, what is not certain; and the wording."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lapse.base.errors import StorageError
from lapse.lifecycle.erase import proof
from lapse.lifecycle.erase.findings import (
    BATCHES,
    KEYLESS,
    RAW,
    Count,
    Findings,
    Piece,
    RawSpot,
    Region,
    Spot,
)
from lapse.lifecycle.erase.places import UNKNOWN_BROKER, Home
from lapse.lifecycle.erase.proof import (
    CANNOT_SEE,
    FORMAT,
    NEVER_SEEN,
    NOT_PROVEN,
    PROVEN,
    REMAINS,
    Report,
    Verdict,
    cluster_ids_of,
    decode_report,
    doubted,
    encode_report,
    judge,
    keys_seen,
    looked_through,
    topic_ids_of,
    totals,
    with_never_seen,
)
from lapse.lifecycle.erase.replicas import ReplicaFindings
from lapse.lifecycle.erase.search import SearchSpec, make_search, spec_of

KEYS = spec_of(make_search([b"a", b"b"]), "5a17")
OFFSETS = spec_of(make_search([], [10, 20]), "5a17")
TOMBSTONES_TOO = replace(KEYS, tombstones_too=True)
CLEAN = Findings(
    "t-0/0.log", "t-0", kind=BATCHES, pieces=(Piece(0, 100, "ab"),), batches=2, records=9
)
FINE = ReplicaFindings("/r", partitions=("t-0",), files=(CLEAN,))


def having(**more: object) -> ReplicaFindings:
    return replace(FINE, files=(CLEAN, replace(CLEAN, path="t-0/1.log", **more)))


def judged(replica: ReplicaFindings, asked: SearchSpec = KEYS) -> Verdict:
    return judge([FINE, replica], asked, "t")


@pytest.mark.parametrize(
    ("replica", "asked"),
    [
        (FINE, KEYS),
        (having(counts=(Count(0, tombstones=3),)), KEYS),
        (having(counts=(Count(0, beyond=3),)), KEYS),
        (having(regions=(Region(5, 9, "r"),)), KEYS),
        (having(regions=(Region(5, 9, "r", zeros=True),)), OFFSETS),
        (having(kind=RAW, regions=(Region(5, 9, "r"),)), OFFSETS),
        (having(kind=KEYLESS, what="an index"), KEYS),
        (ReplicaFindings("/other disk", partitions=()), KEYS),
    ],
)
def test_proven(replica: ReplicaFindings, asked: SearchSpec) -> None:
    assert judged(replica, asked) == Verdict(PROVEN)


@pytest.mark.parametrize(
    ("replica", "asked", "says"),
    [
        (having(counts=(Count(0, records=1),), spots=(Spot(0, 7, 60),)), KEYS,
         "a record with key 1 in /r/t-0/1.log: at offset 7, in the batch at byte 60"),
        (having(counts=(Count(1, records=3),), spots=(Spot(1, 7, 60, damaged=True),)), KEYS,
         ("3 records with key 2 in /r/t-0/1.log: the first at offset 7, in the batch at byte 60, "
          "which is damaged")),
        (having(counts=(Count(0, tombstones=1),)), TOMBSTONES_TOO,
         "a record with key 1 in /r/t-0/1.log"),
        (having(counts=(Count(1, tombstones=1),)), OFFSETS,
         "a record with offset 20 in /r/t-0/1.log"),
    ],
)  # fmt: skip
def test_remains(replica: ReplicaFindings, asked: SearchSpec, says: str) -> None:
    assert judged(replica, asked) == Verdict(REMAINS, (says,))


@pytest.mark.parametrize(
    ("replica", "asked", "says"),
    [
        (replace(FINE, problem="cannot be listed: gone"), KEYS, "/r cannot be listed: gone"),
        (having(problem="cannot be opened: no"), KEYS, "/r/t-0/1.log cannot be opened: no"),
        (having(counts=(Count(0, raw=2),), raw_spots=(RawSpot(0, 55),)), KEYS,
         ("the bytes of key 1 are in /r/t-0/1.log where no record can be read, 2 times, the first "
          "at byte 55")),
        (having(regions=(Region(5, 9, "cut off", opaque=True),)), KEYS,
         "bytes 5 to 8 of /r/t-0/1.log cannot be read (cut off) and may be compressed"),
        (having(regions=(Region(5, 9, "cut off"),)), OFFSETS,
         "bytes 5 to 8 of /r/t-0/1.log cannot be read (cut off): no offset is known"),
        (having(regions_more=4), KEYS, "4 more places of /r/t-0/1.log cannot be read"),
    ],
)  # fmt: skip
def test_not_proven(replica: ReplicaFindings, asked: SearchSpec, says: str) -> None:
    assert judged(replica, asked) == Verdict(NOT_PROVEN, (says,))


def test_a_topic_that_is_nowhere_is_not_proven_gone() -> None:
    empty = ReplicaFindings("/r")
    says = "no given replica has a partition of topic t"
    assert judge([empty], KEYS, "t") == Verdict(NOT_PROVEN, (says,))


def test_what_remains_comes_before_what_is_not_certain() -> None:
    verdict = judged(having(counts=(Count(0, records=1, raw=1),), problem="cut"))
    assert verdict.state == REMAINS
    assert [reason.split()[0] for reason in verdict.reasons] == ["a", "/r/t-0/1.log", "the"]


def test_of_many_places_the_first_are_told() -> None:
    files = tuple(replace(CLEAN, path=f"{n}", counts=(Count(0, 1),)) for n in range(60))
    reasons = judged(replace(FINE, files=files)).reasons
    assert (len(reasons), reasons[-1]) == (proof.REASONS_MAX + 1, "and 10 more such places")


def test_totals_and_what_was_looked_through() -> None:
    raw = Findings("x", kind=RAW, pieces=(Piece(0, 5, "cd"),), regions=(Region(0, 5, "r"),))
    replica = replace(having(counts=(Count(0, 1, 2, 3, 4),)), files=(
        replace(CLEAN, counts=(Count(0, 1, 1, 1, 1),)), replace(CLEAN, counts=(Count(0, 5),)), raw,
    ))  # fmt: skip
    assert totals([replica]) == {0: Count(0, 6, 1, 1, 1)}
    assert looked_through([replica]) == (
        "3 files, 205 B read: 18 records in 4 batches; 1 places that are no batches, searched "
        "raw, 1 files of nothing else"
    )


REPORT = Report(FORMAT, "1", "m", "t", None, KEYS, 1, 2, (FINE,), Verdict(PROVEN))


def test_a_report_is_one_line_and_comes_back() -> None:
    data = encode_report(REPORT)
    assert b"\n" not in data
    assert decode_report(data, "r") == REPORT
    with pytest.raises(StorageError, match="no proof of erasure"):
        decode_report(b"{}", "r")
    with pytest.raises(StorageError, match="format 'x'"):
        decode_report(encode_report(replace(REPORT, format="x")), "r")


def test_a_report_of_the_first_format_is_read() -> None:
    """As the version before wrote it: files by CRC-32C, and no cluster, topic id or key."""
    report = decode_report(OF_FIRST_FORMAT.encode(), "r")
    assert report.is_forgeable
    assert report.replicas[0].files[0].pieces == (Piece(0, 117, None, 3942350860),)
    assert (report.cluster_ids, report.topic_ids, report.key_id) == ((), (), "")
    assert not REPORT.is_forgeable


OF_FIRST_FORMAT = (
    '{"format":"lapse-erasure-proof-1","lapse":"0.1.0","machine":"m","topic":"t",'
    '"partition":null,"asked":{"salt":"5a17","keys":[{"sha256":'
    '"ee07fa9ecb748b55e97c3713ef98ddd0501b67d132c015e04083d3d9c04e61d1","length":9}],'
    '"offsets":[],"below_offset":null,"tombstones_too":false,"bounds":[],"topic_id":null},'
    '"started_ms":1,"ended_ms":2,"replicas":[{"path":"/r","scratch":false,"problem":null,'
    '"partitions":["t-0"],"listings":2,"files":[{"path":"t-0/00000000000000000000.log",'
    '"folder":"t-0","state":{"device":65024,"inode":10010639,"size":117,"mtime_ns":1,'
    '"ctime_ns":1},"kind":"batches","what":null,"problem":null,"vanished":false,"pieces":'
    '[{"start":0,"end":117,"crc32c":3942350860}],"batches":1,"records":1,"control":0,'
    '"inflated_bytes":0,"counts":[],"spots":[],"raw_spots":[],"regions":[],"regions_more":0}],'
    '"homes":[{"folder":"t-0","device":65024,"inode":10010638}],"node_id":null}],"verdict":'
    '{"state":"proven","reasons":[],"never_seen":[]},"cannot_see":["all of it"]}'
)


def test_doubts_that_come_later_take_a_proof_away() -> None:
    assert doubted(Verdict(PROVEN), []) == Verdict(PROVEN)
    assert doubted(Verdict(PROVEN), ["why"]) == Verdict(NOT_PROVEN, ("why",))
    assert doubted(Verdict(NEVER_SEEN, (), (0,)), ["why"]) == Verdict(NOT_PROVEN, ("why",), (0,))
    assert doubted(Verdict(REMAINS, ("there",)), ["why"]) == Verdict(REMAINS, ("there", "why"))


def test_a_report_names_each_cluster_and_each_topic_id_once() -> None:
    one = replace(FINE, cluster_id="B", homes=(Home("t-0", 1, 1, "y"), Home("t-1", 1, 2, "x")))
    two = replace(FINE, cluster_id="A", homes=(Home("t-0", 2, 1, "x"), Home("t-1", 2, 2)))
    assert cluster_ids_of([one, two, one, FINE]) == ("A", "B")
    assert topic_ids_of([one, two]) == ("x", "y")
    assert (cluster_ids_of([FINE]), topic_ids_of([FINE])) == ((), ())


def test_every_report_says_what_it_cannot_see() -> None:
    said = " ".join(msgspec.json.decode(encode_report(REPORT))["cannot_see"])
    for word in (
        "Blocks", "Backups", "snapshots", "tiered storage", "replicas that were not given",
        "consumers", "Values and headers", "after it was read", "without a name", "Memory",
        "compressed or encrypted", "no room for a key",
    ):  # fmt: skip
        assert word in said
    assert tuple(REPORT.cannot_see) == CANNOT_SEE


def test_an_erasure_about_nothing_is_a_verdict_of_its_own() -> None:
    assert with_never_seen(Verdict(PROVEN), [0, 1], 2) == Verdict(NEVER_SEEN, (), (0, 1))
    assert with_never_seen(Verdict(PROVEN), [1], 2) == Verdict(PROVEN, (), (1,))
    assert with_never_seen(Verdict(PROVEN), [], 0) == Verdict(PROVEN)
    doubtful = Verdict(NOT_PROVEN, ("a reason",))
    assert with_never_seen(doubtful, [0], 1) == Verdict(NOT_PROVEN, ("a reason",), (0,))


@pytest.mark.parametrize(
    "count",
    [Count(0, records=1), Count(0, tombstones=1), Count(0, beyond=1), Count(0, raw=1)],
)
def test_whatever_there_is_of_a_key_is_a_sign_of_it(count: Count) -> None:
    found = Findings("t-0/x.log", counts=(count, Count(1)))
    assert keys_seen([ReplicaFindings("/r", files=(found,))], 2) == {0}


# --- replicas that the given ones know of ---------------------------------------------------------


def at(node_id: int | None, *others: int, elsewhere: tuple[int, ...] = ()) -> ReplicaFindings:
    home = Home("t-0", 1, node_id or 0, others=others, elsewhere=elsewhere)
    return replace(FINE, path=f"/r{node_id}", homes=(home,), node_id=node_id)


def test_a_replica_that_was_not_given_is_named() -> None:
    assert judge((at(1, 2), at(2, 1)), KEYS, "t").state == PROVEN
    told = judge((at(1, 2, 3), at(2, 1, 3)), KEYS, "t")
    assert told == Verdict(
        NOT_PROVEN, ("t-0: broker 3 has a replica, and no given directory has that",)
    )


def test_another_directory_of_that_broker_is_not_enough() -> None:
    elsewhere = replace(FINE, path="/r2", partitions=(), files=(), node_id=2)
    assert judge((at(1, 2), elsewhere), KEYS, "t").state == NOT_PROVEN


def test_a_broker_that_had_a_replica_is_named_unless_it_was_looked_through() -> None:
    former = (
        "t-0: broker 3 may still have files of a former replica, and no given directory is that "
        "broker's"
    )
    told = judge((at(1, 2, elsewhere=(3,)), at(2, 1)), KEYS, "t")
    assert told == Verdict(NOT_PROVEN, (former,))
    for name in ("t-0", "t-0.0123456789abcdef0123456789abcdef-delete"):
        there = replace(FINE, path="/r3", partitions=(name,), files=(), node_id=3)
        assert judge((at(1, 2, elsewhere=(3,)), at(2, 1), there), KEYS, "t").state == PROVEN


def test_a_directory_of_that_broker_without_the_partition_says_nothing_of_its_others() -> None:
    says = (
        "t-0: broker 3 may still have files of a former replica, and what was given of that "
        "broker has none: another directory of it may have"
    )
    for partitions in ((), ("t-1",)):
        empty = replace(FINE, path="/r3", partitions=partitions, files=(), node_id=3)
        told = judge((at(1, 2, elsewhere=(3,)), at(2, 1), empty), KEYS, "t")
        assert told == Verdict(NOT_PROVEN, (says,))


def nameless(inode: int, *others: int, folder: str = "t-0") -> ReplicaFindings:
    home = Home(folder, 1, inode, others=others)
    return replace(FINE, path=f"/n{inode}", partitions=(folder,), homes=(home,))


def test_a_directory_without_a_brokers_id_may_be_any_of_them_but_only_one() -> None:
    assert judge((at(1, 2), nameless(0)), KEYS, "t").state == PROVEN
    says = "brokers 2, 3 have replicas, and of the given directories that name no broker"
    told = judge((at(1, 2, 3), nameless(0)), KEYS, "t")
    assert told == Verdict(NOT_PROVEN, (f"t-0: {says} 1 can be theirs",))
    assert judge((at(1, 2, 3), nameless(0), nameless(7)), KEYS, "t").state == PROVEN


def test_a_directory_without_a_brokers_id_is_none_that_it_or_its_files_rule_out() -> None:
    missing = Verdict(
        NOT_PROVEN, ("t-0: broker 2 has a replica, and no given directory has that",)
    )  # fmt: skip
    for other in (
        nameless(8, folder="t-7"),  # of another partition
        nameless(8, 1, 2),  # it has broker 2 for another
        nameless(1),  # broker 1's, by another path
    ):
        assert judge((at(1, 2), other), KEYS, "t") == missing
    assert judge((nameless(8, 2), nameless(9, 1)), KEYS, "t").state == PROVEN  # 1 and 2
    assert judge((at(1, 2, 3), nameless(8, 1, 2), nameless(9)), KEYS, "t").state == PROVEN
    assert judge((at(1, 2, 3), nameless(8, 1, 2), nameless(9, 1, 2)), KEYS, "t").state != PROVEN


def test_a_directory_without_a_brokers_id_is_no_former_replica_s() -> None:
    told = judge((at(1, 2, elsewhere=(4,)), nameless(0)), KEYS, "t")
    assert [reason.split(",")[0] for reason in told.reasons] == [
        "t-0: broker 4 may still have files of a former replica"
    ]


def test_what_a_directory_knows_may_be_damaged() -> None:
    told = judge((at(1, UNKNOWN_BROKER),), KEYS, "t")
    assert told == Verdict(NOT_PROVEN, ("/r1/t-0: which other brokers have it is not known",))
