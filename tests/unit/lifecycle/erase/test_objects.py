"""Objects of a store as files: listed, copied and looked through. By moto's S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.bucket import Bucket, ObjectInfo
from lapse.base.errors import StorageError
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.objects import copied, fetched, listed
from tests.support.spark.object_store import ObjectStore, let_in, object_store

BLOCK = 4 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("moto")) as running, let_in(running):
        yield running


def size_of(fd: int) -> Findings:
    return Findings("a", records=os.fstat(fd).st_size)


def test_a_copy_has_the_objects_bytes_and_state_and_no_name(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place, data = store.place(), os.urandom(BLOCK + 7)
    Bucket(place).put("a/b.parquet", data)
    [found] = listed(place).places
    with copied(place, "a/b.parquet") as (fd, state):
        assert os.pread(fd, len(data) + 1, 0) == data
        assert [*tmp_path.iterdir()] == []
        assert (found.path, found.folder, found.state) == ("a/b.parquet", "", state)
    assert (state.size, state.inode) == (len(data), 0)


def test_one_that_is_written_anew_meanwhile_is_copied_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy is of two versions, of which each could have what the other has not."""
    place, blocks = store.place(), Bucket.blocks
    Bucket(place).put("a", b"1" * 9)
    news = [b"2" * 9, b"3" * 9]

    def beside(bucket: Bucket, name: str, block_bytes: int) -> Iterator[bytes]:
        yield from blocks(bucket, name, block_bytes)
        if news:
            bucket.put("a", news.pop())

    monkeypatch.setattr(Bucket, "blocks", beside)
    with copied(place, "a") as (fd, _):
        assert os.pread(fd, 99, 0) == b"2" * 9
    news.extend([b"%d" % n for n in range(3)])
    unit = AuditUnit(place, "a", rows=True)
    assert fetched(unit, size_of).problem == (
        f"cannot be read: {place}/a: is written anew again and again"
    )


def test_what_is_gone_or_cannot_be_read_is_a_finding(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.place()
    unit = AuditUnit(place, "a", rows=True)
    assert fetched(unit, size_of) == Findings("a", vanished=True)
    Bucket(place).put("a", b"123")
    found = fetched(unit, size_of)
    assert (found.records, found.problem) == (3, None)
    assert found.state == listed(place).places[0].state

    def refused(bucket: Bucket, name: str, _: int) -> Iterator[bytes]:
        raise StorageError(f"{bucket.uri}/{name}: AccessDenied")

    monkeypatch.setattr(Bucket, "blocks", refused)
    assert fetched(unit, size_of).problem == f"cannot be read: {place}/a: AccessDenied"

    def gone(*_: object) -> ObjectInfo:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Bucket, "info", gone)
    assert fetched(unit, size_of).problem == "cannot be copied: No space left on device"


def test_what_cannot_be_listed_or_is_not_there_is_a_problem(store: ObjectStore) -> None:
    assert "no object has a name that begins so" in (listed(store.place()).problem or "")
    assert "no object has a name that begins so" in (listed("s3://nobodys/t").problem or "")
    assert "allowed is a directory, or s3://" in (listed("s3://lake").problem or "")
