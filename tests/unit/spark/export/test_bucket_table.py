"""Tables in an object store: what counts, what goes, and two runs at a time. By moto's S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from lapse.base.bucket import Bucket
from lapse.base.errors import ConfigError, StorageError
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.replicas import Sort, Where, look_through
from lapse.lifecycle.erase.search import make_search
from lapse.lifecycle.erase.table_files import topic_of_table
from lapse.spark.export.bucket_table import BucketTable, name_of
from lapse.spark.export.decide import ExportState, Format, Kind, LogNow
from lapse.spark.export.delta import DeltaLog
from lapse.spark.export.files import SCHEMA, STORED, NewFiles
from lapse.spark.export.iceberg import NAMESPACE, IcebergLog
from lapse.spark.export.partition import Written
from lapse.spark.export.run import Done, ExportOptions, Started, begin, end, would_do
from lapse.spark.export.table import ATTEMPTS
from lapse.spark.export.table_log import Change, LogOptions, commit, log_of
from lapse.spark.export.tables import created, table_at
from lapse.testing.clock import ManualClock
from tests.support.spark.expiring import Gate, gate
from tests.support.spark.object_store import ObjectStore, let_in, object_store

NOW = 1_900_000_000_000
VERSIONED = [Format.DELTA, Format.ICEBERG]
HTTP = {"aws_allow_http": "true"}
EXPIRED = r"(?i)expired|HTTP status 400"  # the answer to HEAD has a status alone


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture
def store(
    shared: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """As the environment says, with a catalog of Iceberg's beside it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", tmp_path.as_uri())
    endpoint = shared.environment["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ENDPOINT", endpoint)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which is read once
    with let_in(shared):
        yield shared


def topic_of(place: str) -> str:
    return f"users.{place.rpartition('/')[2]}"


def wish(place: str, how: Format, *, anew: bool = False) -> ExportOptions:
    catalog = "lake" if how is Format.ICEBERG else None
    return ExportOptions(topic_of(place), Kind.LATEST, how, catalog, anew)


def log_now(place: str, until: int) -> LogNow:
    return LogNow(topic_of(place), None, {0: (0, until)}, NOW, 3_600_000)


class Run:
    """A run, in as many processes as a session of somebody's own has."""

    def __init__(self, place: str, how: Format, *, anew: bool = False) -> None:
        self.place, self.wish = place, wish(place, how, anew=anew)
        self.started: Started

    def begin(self, until: int) -> Run:
        log = log_now(self.place, until)
        self.started = begin(table_at(self.place), lambda: log, self.wish)
        return self

    def write(self, key: bytes) -> tuple[str, ...]:
        """All of partition 0 is one row of this key."""
        out = NewFiles(created(Bucket(self.place), self.started.run_id, 0))
        out.write(one_row(key))
        return out.close()

    def end(self, names: tuple[str, ...], kept: tuple[str, ...] = ()) -> Done:
        written = {0: Written(0, kept, names, len(names))} if names or kept else {}
        done = end(table_at(self.place), self.started, written, self.wish, ManualClock(NOW))
        assert done is not None
        return done


def run(place: str, how: Format, until: int, key: bytes, *, anew: bool = False) -> Done:
    one = Run(place, how, anew=anew).begin(until)
    return one.end(one.write(key))


def one_row(key: bytes) -> pa.RecordBatch:
    values = {"offset": [0], "key": [key]}
    columns = [pa.array(values.get(n, [None]), SCHEMA.field(n).type) for n in STORED]
    return pa.record_batch(columns, names=list(STORED))


def keys(store: ObjectStore, place: str, how: Format) -> list[bytes]:
    """By the library of the format; files of Delta by Arrow, where both at once end in a crash."""
    if how is Format.ICEBERG:
        table = load_catalog("lake").load_table((NAMESPACE, topic_of(place)))
        return sorted(table.scan().to_arrow()["key"].to_pylist())
    uris = DeltaTable(place, storage_options=HTTP).file_uris()
    files = [pq.read_table(uri.removeprefix("s3://"), filesystem=store.files()) for uri in uris]
    return sorted(key for file in files for key in file["key"].to_pylist())


def data_files(place: str) -> set[str]:
    return {name for name in Bucket(place).names() if name.startswith("partition=")}


def marks(place: str) -> set[str]:
    return {name for name in Bucket(place).names() if name.startswith(f"{ATTEMPTS}/")}


@pytest.mark.parametrize("how", VERSIONED)
def test_a_run_replaces_what_was_there(store: ObjectStore, how: Format) -> None:
    place = store.place()
    assert run(place, how, 5, b"one").why == "there is no table yet"
    assert keys(store, place, how) == [b"one"]
    done = run(place, how, 9, b"two")
    assert (done.records_new, done.files, done.files_removed, done.why) == (4, 1, 1, "")
    assert keys(store, place, how) == [b"two"]
    assert len(data_files(place)) == 1
    assert marks(place) == set()
    now = would_do(table_at(place), lambda: log_now(place, 12), wish(place, how))
    assert (now.records_new, now.files) == (3, 1)


@pytest.mark.parametrize("how", VERSIONED)
def test_what_is_read_counts_also_where_no_row_comes_of_it(store: ObjectStore, how: Format) -> None:
    """A tombstone of a key that was never there, say: the next run begins behind it."""
    place = store.place()
    run(place, how, 5, b"one")
    one = Run(place, how).begin(9)
    [kept] = one.started.run.steps[0].files
    one.end((), (kept,))
    assert marks(place) == set()
    state = Run(place, how).begin(9).started.state
    assert state.partitions[0].next_offset == 9
    assert keys(store, place, how) == [b"one"]


@pytest.mark.parametrize("how", VERSIONED)
def test_of_two_runs_at_a_time_one_counts(store: ObjectStore, how: Format) -> None:
    place = store.place()
    run(place, how, 5, b"one")
    slow, quick = Run(place, how).begin(9), Run(place, how).begin(9)
    slow_names = slow.write(b"slow")
    quick.end(quick.write(b"quick"))
    with pytest.raises(ConfigError, match="another export has written to it meanwhile; run this"):
        slow.end(slow_names)
    assert keys(store, place, how) == [b"quick"]
    late = slow.write(b"late")  # a task of it lives on
    assert len(data_files(place)) == 2
    run(place, how, 12, b"three")
    assert keys(store, place, how) == [b"three"]
    assert not any(late[0] in name for name in data_files(place))


def test_a_run_under_way_keeps_its_files_while_another_begins(store: ObjectStore) -> None:
    place, how = store.place(), Format.DELTA
    run(place, how, 5, b"one")
    one = Run(place, how).begin(9)
    names = one.write(b"two")
    Run(place, how).begin(9)  # which sees to what others left
    one.end(names)
    assert keys(store, place, how) == [b"two"]


def test_what_a_killed_run_left_goes_with_the_next(store: ObjectStore) -> None:
    place, how = store.place(), Format.DELTA
    run(place, how, 5, b"one")
    Run(place, how).begin(9).write(b"killed")
    assert len(data_files(place)) == 2
    assert keys(store, place, how) == [b"one"]
    done = run(place, how, 9, b"two")
    assert done.files_removed == 2
    assert (len(data_files(place)), marks(place)) == (1, set())


@pytest.mark.parametrize("how", VERSIONED)
def test_a_run_that_finds_nothing_new_makes_a_version_too(store: ObjectStore, how: Format) -> None:
    """So what a killed one left goes, and of two that find nothing one is refused."""
    place = store.place()
    run(place, how, 5, b"one")
    Run(place, how).begin(5).write(b"killed")
    slow, quick = Run(place, how).begin(5), Run(place, how).begin(5)
    quick.end(())
    assert (len(data_files(place)), marks(place)) == (1, set())
    with pytest.raises(ConfigError, match="another export has written to it meanwhile"):
        slow.end(())
    assert keys(store, place, how) == [b"one"]


@pytest.mark.parametrize("how", VERSIONED)
def test_a_first_run_that_was_killed_is_followed_by_another(
    store: ObjectStore, how: Format
) -> None:
    place = store.place()
    killed = Run(place, how).begin(5)
    killed.write(b"killed")
    if how is Format.ICEBERG:  # as after a kill between the two
        log = log_of(LogOptions(how, Bucket(place), topic_of(place), "lake"))
        assert isinstance(log, IcebergLog)
        log._created()
    assert run(place, how, 5, b"one").files == 1
    assert keys(store, place, how) == [b"one"]
    assert (len(data_files(place)), marks(place)) == (1, set())


@pytest.mark.parametrize("how", VERSIONED)
def test_a_commit_is_of_the_version_that_was_looked_at(
    store: ObjectStore, how: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may end between the look and the commit, and delete what this one wrote."""
    place = store.place()
    run(place, how, 5, b"one")
    slow, quick = Run(place, how).begin(9), Run(place, how).begin(9)
    slow_names, quick_names = slow.write(b"slow"), quick.write(b"quick")
    noted = BucketTable.note_of

    def noted_late(table: BucketTable, state: ExportState) -> str:
        monkeypatch.setattr(BucketTable, "note_of", noted)
        quick.end(quick_names)
        return noted(table, state)

    monkeypatch.setattr(BucketTable, "note_of", noted_late)
    with pytest.raises(ConfigError, match="somebody else changed the table meanwhile"):
        slow.end(slow_names)
    assert keys(store, place, how) == [b"quick"]
    run(place, how, 12, b"three")
    assert (keys(store, place, how), len(data_files(place))) == ([b"three"], 1)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_file_that_comes_to_count_meanwhile_is_kept(
    store: ObjectStore, is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before files are listed, or just after: or a table would lose rows."""
    place, how = store.place(), Format.DELTA
    run(place, how, 5, b"one")
    other = Run(place, how).begin(9)
    names, listed = other.write(b"two"), Bucket.names

    def listed_beside(bucket: Bucket, folder: str = "") -> set[str]:
        monkeypatch.setattr(Bucket, "names", listed)
        if is_before:
            other.end(names)
        found = listed(bucket, folder)
        if not is_before:
            other.end(names)
        return found

    monkeypatch.setattr(Bucket, "names", listed_beside)
    Run(place, how).begin(12)
    assert keys(store, place, how) == [b"two"]


@pytest.mark.parametrize("how", VERSIONED)
def test_what_somebody_else_has_changed_is_refused_or_made_anew(
    store: ObjectStore, how: Format
) -> None:
    place = store.place()
    run(place, how, 5, b"one")
    if how is Format.ICEBERG:
        table = load_catalog("lake").load_table((NAMESPACE, topic_of(place)))
        table.append(table.scan().to_arrow())
    else:
        DeltaTable(place, storage_options=HTTP | {"aws_conditional_put": "etag"}).delete()
    with pytest.raises(ConfigError, match="somebody else has changed the table: version"):
        run(place, how, 9, b"two")
    run(place, how, 9, b"two", anew=True)
    assert keys(store, place, how) == [b"two"]
    assert len(data_files(place)) == 1


def test_two_commits_of_one_version_are_one(store: ObjectStore) -> None:
    """Also where both add rows and remove none, which the library would let pass."""
    bucket = Bucket(store.place())
    log = DeltaLog(LogOptions(Format.DELTA, bucket, "t"))
    log.commit(Change((), (), NOW))
    stale = DeltaLog(LogOptions(Format.DELTA, bucket, "t"))
    assert stale.newest_version() == 0

    def adding(run_id: str) -> Change:
        out = NewFiles(created(bucket, run_id, 0))
        out.write(one_row(b"k"))
        return Change(tuple(name_of(run_id, 0, name) for name in out.close()), (), NOW)

    log.commit(adding("one"))
    with pytest.raises(ConfigError, match="somebody else changed the table meanwhile"):
        commit(stale, adding("two"))
    assert len(log.files()) == 1
    options = LogOptions(Format.DELTA, Bucket(store.place()), "t")
    first, late = DeltaLog(options), DeltaLog(options)
    assert late.newest_version() is None
    first.commit(Change((), (), NOW))
    with pytest.raises(ConfigError, match="somebody else changed the table meanwhile"):
        commit(late, Change((), (), NOW))


def test_a_version_that_changes_no_file_is_no_trouble(store: ObjectStore) -> None:
    place = store.place()
    run(place, Format.DELTA, 5, b"one")
    table = DeltaTable(place, storage_options=HTTP | {"aws_conditional_put": "etag"})
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    assert run(place, Format.DELTA, 9, b"two").records_new == 4
    assert keys(store, place, Format.DELTA) == [b"two"]


def test_a_prefix_that_has_something_else_is_refused(store: ObjectStore) -> None:
    place = store.place()
    Bucket(place).put("notes.txt", b"mine")
    with pytest.raises(ConfigError, match="allowed is a new or empty folder, or an export"):
        run(place, Format.DELTA, 5, b"one")
    assert [*Bucket(place).names()] == ["notes.txt"]


@pytest.fixture
def guarded(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The way to the store from here on."""
    with gate(store.port) as one:
        url = f"http://127.0.0.1:{one.port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ENDPOINT", url)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        yield one


@pytest.mark.parametrize("how", VERSIONED)
def test_credentials_that_expire_at_any_moment_leave_all_or_nothing(
    store: ObjectStore, guarded: Gate, how: Format, scaled: Callable[[int], int]
) -> None:
    """The table is as before or as it was to be, and the next run goes on from there."""
    place = store.place()
    run(place, how, 5, b"first")
    guarded.open()
    run(place, how, 6, b"second")
    requests = guarded.open()
    assert requests > 10
    before, until = b"second", 6
    for n in range(0, requests, -(-requests // scaled(60))):
        until += 2
        guarded.open(n)
        with pytest.raises((StorageError, ConfigError), match=EXPIRED):
            run(place, how, until, b"cut off")
        guarded.open()
        assert keys(store, place, how) in ([before], [b"cut off"]), n
        before = b"after %d" % n
        run(place, how, until + 1, before)
        assert keys(store, place, how) == [before]
        assert len(data_files(place)) == 1
        assert marks(place) == set()


@pytest.mark.parametrize("how", VERSIONED)
def test_an_erased_key_is_in_no_object_and_that_is_proven(store: ObjectStore, how: Format) -> None:
    """Not in the logs either, nor in the files of versions that are over."""
    place = store.place()
    where = Where(place, topic_of(place), sort=Sort.TABLE)

    def found_of(key: bytes) -> list[str]:
        look = InlineAudits(make_search([key]), ManualClock(NOW), lambda _: None)
        seen = look_through(where, look, ManualClock(NOW))
        assert seen.problem is None
        assert [f for f in seen.files if f.problem or any(r.opaque for r in f.regions)] == []
        return [found.path for found in seen.files if found.counts]

    run(place, how, 5, b"user-4711")
    assert set(found_of(b"user-4711")) >= data_files(place) != set()
    run(place, how, 9, b"user-4712")
    assert found_of(b"user-4711") == []
    assert set(found_of(b"user-4712")) >= data_files(place) != set()
    assert topic_of_table(place) == (topic_of(place), None)


@pytest.mark.parametrize("how", VERSIONED)
def test_a_bucket_that_is_not_there_is_named(store: ObjectStore, how: Format) -> None:
    place = "s3://nobodys/table"
    with pytest.raises(StorageError, match="s3://nobodys/table"):
        run(place, how, 5, b"one")


def test_iceberg_needs_a_catalog_of_its_own(store: ObjectStore) -> None:
    place = store.place()
    plain = ExportOptions("t", Kind.LATEST, Format.ICEBERG)
    with pytest.raises(ConfigError, match="an Iceberg table there needs --catalog"):
        begin(table_at(place), lambda: log_now(place, 5), plain)
    assert [*Bucket(place).names()] == []


@pytest.mark.parametrize(
    "place",
    [
        "s3://",
        "s3://lake",
        "s3://lake/",
        "gs://lake/t",
        "s3://lake/t?x=1",
        "file:///t",
        "s3://lake/a//b",
    ],
)
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed is a directory, or s3://BUCKET/PREFIX"):
        table_at(place)
