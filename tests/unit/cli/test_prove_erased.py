"""`lapse prove-erased`: what is asked, what is printed, how it ends."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lapse.base.bucket import Bucket
from lapse.base.clock import time_text
from lapse.base.fs import RealFs
from lapse.base.ids import format_topic_id
from lapse.cli.main import main
from lapse.lifecycle.erase.places import Listing
from lapse.lifecycle.erase.proof import CANNOT_SEE
from lapse.lifecycle.erase.replicas import Where
from lapse.lifecycle.erase.sign import fingerprint, load_or_make_key, public_pem, seal, unseal
from lapse.log.checkpoints import write_meta, write_topic_id
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.erase.replica import batch, written
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten
from tests.support.spark.object_store import let_in, object_store

GONE = "k9"


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test may leave a key with whoever runs it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "lapse" / "erasure-proof-key.pem"


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """Topic t with keys k0 … k2, of which k0 ends in a tombstone; and topic u."""
    path = tmp_path / "replica"
    pairs = [*overwritten(keys=3, times=3), ("k0", None)]
    make_logs(path, {"t": pairs, "u": [(GONE, "v")]}, compacted(), ManualClock(NOW))
    return path


class Told:
    """What a run printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        capsys.readouterr()
        try:
            self.code = main(["prove-erased", *map(str, words)])
        except SystemExit as e:
            self.code = int(str(e.code))
        self.out, self.err = capsys.readouterr()


def test_a_key_that_is_nowhere_is_proven_gone(
    replica: Path, own_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica)
    assert told.code == 0
    assert "verdict: proven\n" in told.out
    assert "Whether a key was ever there" in told.out
    assert all(text in told.out for text in CANNOT_SEE)
    assert not own_key.exists()  # nothing was signed


def test_a_key_that_is_there_remains(replica: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, "--topic", "t", "--key", GONE, "--key", "k0", "--replica", replica)
    assert told.code == 1
    assert "verdict: remains" in told.out
    assert f"records with key 2 in {replica}/t-0/" in told.out
    assert "1 (the key itself is in them)" in told.out


def test_a_partition_that_moves_between_directories_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one that is yet to be looked at to one that was looked at already."""
    first, second, list_now = tmp_path / "1", tmp_path / "2", Where.listed
    written(first / "t-1" / "00000000000000000000.log", batch(0, b"k0"))
    written(second / "t-0" / "00000000000000000000.log", batch(0, b"k1"))

    def listed(where: Where) -> Listing:
        if where.path == str(second) and (second / "t-0").exists():
            (second / "t-0").rename(first / "t-0")
            (second / "u-0").mkdir()
        return list_now(where)

    monkeypatch.setattr(Where, "listed", listed)
    told = Told(capsys, "--topic", "t", "--key", "k1", "--replica", first, "--replica", second)
    assert (told.code, f"a record with key 1 in {first}/t-0/" in told.out) == (1, True)


def test_tombstones_count_where_that_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "t-0" / "00000000000000000000.log", batch(0, b"k", value=None))
    words = ("--topic", "t", "--key", "k", "--replica", tmp_path)
    assert [Told(capsys, *words, *more).code for more in ((), ("--tombstones-too",))] == [0, 1]


def test_a_table_in_an_object_store_is_looked_through_and_looked_at_again(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a check of its report too, with the keys and without, and where it lies elsewhere."""
    proof, file, name = tmp_path / "proof.json", tmp_path / "a.parquet", "partition=0/a.parquet"
    with object_store(tmp_path) as store, let_in(store):
        place = store.place()
        words = ("--topic", "t", "--key", GONE, "--replica", replica, "--table", place)
        pq.write_table(pa.table({"key": [GONE.encode(), b"k1"], "offset": [3, 4]}), file)
        Bucket(place).put(name, file.read_bytes())
        told = Told(capsys, *words)
        assert told.code == 1
        assert f"a record with key 1 in {place}/{name}: at offset 3\n" in told.out
        pq.write_table(pa.table({"key": [b"k1"], "offset": [4]}), file)
        Bucket(place).put(name, file.read_bytes())
        told = Told(capsys, *words, "--report", proof)
        assert told.code == 0
        assert f"{place}: table, 1 files\n" in told.out
        assert "older versions of objects" in told.out
        assert Told(capsys, "--check", proof).code == 0
        assert Told(capsys, "--check", proof, "--key", GONE).code == 0
        moved = store.place()
        Bucket(moved).put(name, file.read_bytes())
        assert Told(capsys, "--check", proof, "--replica", replica, "--replica", moved).code == 0
        Bucket(moved).put(name, b"other")
        assert Told(capsys, "--check", proof, "--replica", replica, "--replica", moved).code == 3
        store.process.kill()
        told = Told(capsys, "--check", proof)
        assert told.code == 3
        assert f"{place}: cannot be listed: " in told.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--table", "s3://lake"), "--table s3://lake: allowed is a directory, or s3://BUCKET/"),
        (("--table", "gs://lake/t"), "--table gs://lake/t: allowed is a directory, or s3://"),
        (("--spark-local-dir", "s3://a/b"), "--spark-local-dir s3://a/b: allowed is a directory"),
        (("--replica", "s3://a/b"), "--replica s3://a/b: allowed is a directory"),
    ],
)
def test_what_is_no_place_is_refused(
    replica: Path, more: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica, *more)
    assert told.code == 2
    assert said in told.err


def test_a_table_is_looked_through_and_looked_at_again(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a check of its report too, with the keys and without."""
    file = tmp_path / "table" / "partition=0" / "a.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"key": [GONE.encode(), b"k1"], "offset": [3, 4]}), file)
    proof = tmp_path / "proof.json"
    words = ("--topic", "t", "--key", GONE, "--replica", replica, "--table", tmp_path / "table")
    told = Told(capsys, *words)
    assert told.code == 1
    assert f"a record with key 1 in {file}: at offset 3\n" in told.out
    pq.write_table(pa.table({"key": [b"k1"], "offset": [4]}), file)
    told = Told(capsys, *words, "--report", proof)
    assert told.code == 0
    assert f"{tmp_path / 'table'}: table, 1 files\n" in told.out
    assert Told(capsys, "--check", proof).code == 0
    assert Told(capsys, "--check", proof, "--key", GONE).code == 0
    pq.write_table(pa.table({"key": [GONE.encode()], "offset": [4]}), file)
    assert Told(capsys, "--check", proof).code == 3
    told = Told(capsys, "--check", proof, "--key", GONE)
    assert (told.code, f"{file}: changed" in told.out) == (1, True)


def test_a_table_alone_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, "--topic", "t", "--key", GONE, "--table", tmp_path)
    assert (told.code, "--replica: at least one log directory" in told.err) == (2, True)


def test_bounds_offsets_and_partitions(replica: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--topic", "t", "--replica", replica)
    assert Told(capsys, *words, "--key", "k0", "--below-offset", 0).code == 0
    told = Told(capsys, *words, "--key", "k0", "--below-offset", 3)
    assert (told.code, "at or above the bound" in told.out) == (1, True)
    assert Told(capsys, *words, "--partition", 0, "--offset", 4).code == 1
    assert Told(capsys, *words, "--partition", 0, "--offset", 4000).code == 0
    assert Told(capsys, *words, "--partition", 7, "--offset", 4).code == 3


def test_keys_of_files_in_any_format(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("6b39\n6b38\n")
    (tmp_path / "keys.csv").write_text("user,when\n6b31,1\n")
    words = ("--topic", "t", "--replica", replica, "--key-format", "hex")
    assert Told(capsys, *words, "--keys", tmp_path / "lines").code == 0
    csv = ("--keys", tmp_path / "keys.csv", "--key-column", "user")
    assert Told(capsys, *words, *csv).code == 1


def test_a_key_file_that_is_read_wrongly_proves_nothing(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--topic", "t", "--replica", replica, "--keys")
    files = {
        "mark": ("\ufeffk1\n", "utf-8", 1),
        "wide": ("k1\r\n", "utf-16", 2),
        "headless.csv": ("k1\nk9\n", "utf-8", 2),
    }
    for name, (text, encoding, code) in files.items():
        (tmp_path / name).write_text(text, encoding)
        assert Told(capsys, *words, tmp_path / name).code == code, name


def test_names_that_are_not_utf_8_are_in_the_way_of_a_proof_and_not_of_a_report(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Path(os.fsdecode(os.fsencode(replica / "t-0") + b"/\xff.log"))
    odd.write_bytes(b"k9")
    words = ("--topic", "t", "--key", GONE, "--replica", replica)
    told = Told(capsys, *words, "--report", tmp_path / "report")
    assert (told.code, "\\xff.log/ has a name that is not UTF-8" in told.out) == (3, True)
    assert Told(capsys, "--check", tmp_path / "report", "--key", GONE).code == 3
    odd.unlink()
    assert Told(capsys, *words).code == 0
    (tmp_path / os.fsdecode(b"\xff")).symlink_to(replica)
    told = Told(capsys, *words[:-1], tmp_path / os.fsdecode(b"\xff"))
    assert (told.code, "is not UTF-8, and no report" in told.err) == (2, True)


def test_a_spark_folder_is_searched_too(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "spark" / "x" / "temp_shuffle", b"\x07" + GONE.encode())
    words = ("--topic", "t", "--key", GONE, "--replica", replica)
    told = Told(capsys, *words, "--spark-local-dir", tmp_path / "spark")
    assert (told.code, "the bytes of key 1 are in" in told.out) == (3, True)
    missing = Told(capsys, *words, "--spark-local-dir", tmp_path / "none")
    assert (missing.code, "no such directory" in missing.out) == (3, True)


@pytest.mark.parametrize("where", ["missing", "."])
def test_a_replica_that_is_away_is_not_proven(
    where: str, replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--topic", "t", "--key", GONE, "--replica", replica)
    told = Told(capsys, *words, "--replica", tmp_path / where)
    assert told.code == 3
    assert "verdict: not proven" in told.out


def test_a_topic_misspelt_is_not_proven(replica: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, "--topic", "tt", "--key", GONE, "--replica", replica)
    assert (told.code, "no given replica has a partition of topic tt" in told.out) == (3, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--key", "k", "--replica", "."), "--topic"),
        (("--topic", "a/b", "--key", "k", "--replica", "."), "--topic"),
        (("--topic", "t", "--key", "k"), "--replica"),
        (("--topic", "t", "--replica", "."), "nothing to look for"),
        (("--topic", "t", "--key", "", "--replica", "."), "at least one byte"),
        (("--topic", "t", "--key", "x", "--key-format", "hex", "--replica", "."), "not hex"),
        (("--topic", "t", "--offset", "1", "--replica", "."), "needs --partition"),
        (("--topic", "t", "--key", "k", "--replica", ".", "--public-key", "x"), "--check"),
        (("--check", "r", "--topic", "t"), "not allowed with --check"),
        (("--check", "r", "--offset", "3"), "the report says"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_in_a_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(capsys, *words)
    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert says in told.err


# --- reports --------------------------------------------------------------------------------------


def test_a_report_is_signed_with_a_key_of_ours_and_holds(
    replica: Path, tmp_path: Path, own_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof.json"
    words = ("--topic", "t", "--key", GONE, "--replica", replica, "--report", path)
    told = Told(capsys, *words)
    sealed = unseal(path.read_bytes(), "r")
    assert told.code == 0
    assert f"made a key for signing: {own_key}" in told.err
    assert public_pem(sealed.public_key) in told.err
    report = json.loads(path.read_text())["report"]
    assert GONE.encode().hex() not in path.read_text()
    assert (report["topic"], report["verdict"]) == (
        "t", {"state": "proven", "reasons": [], "never_seen": []},
    )  # fmt: skip
    paths = {file["path"] for file in report["replicas"][0]["files"]}
    assert paths >= {"t-0/00000000000000000000.log", "t-0/00000000000000000000.index", ".lock"}
    again = Told(capsys, *words)
    assert (again.code, "never written over" in again.err) == (3, True)
    checked = Told(capsys, "--check", path)
    assert checked.code == 0
    assert f"signed with our own key, {own_key}" in checked.out
    assert "verdict: proven" in checked.out


def test_json_is_the_report_itself(replica: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, "--topic", "t", "--key", "k0", "--replica", replica, "--json")
    report = json.loads(unseal(told.out.encode(), "r").body)
    assert (told.code, report["verdict"]["state"]) == (1, "remains")


def test_a_report_that_was_tampered_with_proves_nothing(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof.json"
    Told(capsys, "--topic", "t", "--key", "k0", "--replica", replica, "--report", path)
    path.write_text(path.read_text().replace('"state":"remains"', '"state":"proven"'))
    told = Told(capsys, "--check", path)
    assert (told.code, told.out) == (3, "")
    assert "the signature does not match" in told.err


def test_whose_signature_it_must_be(
    replica: Path, tmp_path: Path, own_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, public = tmp_path / "proof.json", tmp_path / "public.pem"
    Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica, "--report", path)
    public.write_text(public_pem(unseal(path.read_bytes(), "r").public_key))
    assert Told(capsys, "--check", path, "--public-key", public).code == 0
    own_key.unlink()
    other = tmp_path / "other.json"
    Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica, "--report", other)
    told = Told(capsys, "--check", other, "--public-key", public)
    assert (told.code, "signed with another key" in told.err) == (3, True)
    named = ("--public-key", public)
    own_key.rename(tmp_path / "away")
    Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica, "--json")  # makes a third
    both = Told(capsys, "--check", path, *named, "--public-key", write_public(other))
    assert (both.code, f"signed with {public}" in both.out) == (0, True)


def write_public(report: Path) -> Path:
    """The public key in a report, as PEM."""
    path = report.with_suffix(".pem")
    path.write_text(public_pem(unseal(report.read_bytes(), "r").public_key))
    return path


def test_a_strangers_signature_proves_nothing_until_its_key_is_named(
    replica: Path, tmp_path: Path, own_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody can make a key, and sign with it that a replica less was all there was."""
    path = tmp_path / "proof.json"
    for key, code in ((GONE, 3), ("k0", 1)):
        Told(capsys, "--topic", "t", "--key", key, "--replica", replica, "--report", path)
        own_key.unlink()
        for words in ((), ("--key", key)):
            told = Told(capsys, "--check", path, *words)
            assert told.code == code
            assert "which is not ours: if you know whose it is, name it by --public-key" in told.out
            assert ("verdict: proven" in told.out) is False
            named = Told(capsys, "--check", path, *words, "--public-key", write_public(path))
            assert named.code == (0 if key == GONE else 1)
        path.unlink()


def test_a_report_names_cluster_topic_key_and_time(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof.json"
    write_meta(RealFs(), replica, {"cluster.id": "the-cluster", "node.id": "1"})
    write_topic_id(RealFs(), replica / "t-0", uuid.UUID(int=7))
    topic_id = format_topic_id(uuid.UUID(int=7))
    words = ("--topic", "t", "--key", GONE, "--replica", replica, "--report", path)
    says = f"topic t, id {topic_id}; cluster the-cluster\n"
    assert says in Told(capsys, *words).out
    sealed = unseal(path.read_bytes(), "r")
    report = json.loads(sealed.body)
    assert (report["cluster_ids"], report["topic_ids"]) == (["the-cluster"], [topic_id])
    assert report["key_id"] == fingerprint(sealed.public_key)
    told = Told(capsys, "--check", path, "--key", GONE)
    assert (told.code, says in told.out) == (0, True)
    assert f"it said, {time_text(report['ended_ms'])}: proven\n" in told.out


def test_a_report_that_names_another_key_than_it_is_signed_with_is_none(
    replica: Path, tmp_path: Path, own_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof.json"
    Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica, "--report", path)
    body = unseal(path.read_bytes(), "r").body
    own_key.unlink()
    other, _ = load_or_make_key(RealFs(), own_key)
    path.write_bytes(seal(body, other))
    told = Told(capsys, "--check", path)
    assert (told.code, "and is signed with key" in told.err) == (3, True)


def test_a_check_tells_what_is_different(
    replica: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof.json"
    Told(capsys, "--topic", "t", "--key", GONE, "--replica", replica, "--report", path)
    written(replica / "t-0" / "00000000000000000000.log.deleted", batch(0, GONE.encode()))
    without = Told(capsys, "--check", path)
    assert (without.code, "not looked through" in without.out) == (3, True)
    told = Told(capsys, "--check", path, "--key", GONE)
    assert (told.code, "00000000000000000000.log.deleted: new" in told.out) == (1, True)
    as_json = Told(capsys, "--check", path, "--key", GONE, "--json").out.splitlines()
    assert [set(json.loads(line)) for line in as_json] == [
        {"path", "what"}, {"state", "reasons", "never_seen"},
    ]  # fmt: skip
    wrong = Told(capsys, "--check", path, "--key", "another")
    assert (wrong.code, "not the keys" in wrong.err) == (2, True)
    moved = replica.rename(tmp_path / "moved")
    assert Told(capsys, "--check", path, "--key", GONE).code == 3
    assert Told(capsys, "--check", path, "--key", GONE, "--replica", moved).code == 1
    assert Told(capsys, "--check", path, "--replica", moved, "--replica", moved).code == 2


def test_a_key_given_for_signing(
    replica: Path, tmp_path: Path, own_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--topic", "t", "--key", GONE, "--replica", replica, "--json")
    Told(capsys, *words)
    given = own_key.rename(tmp_path / "mine.pem")
    told = Told(capsys, *words, "--sign-with", given)
    assert (told.code, own_key.exists()) == (0, False)
    assert Told(capsys, *words, "--sign-with", tmp_path / "none").code == 3
