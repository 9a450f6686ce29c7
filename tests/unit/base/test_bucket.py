"""A prefix of an object store: by moto's S3."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from lapse.base.bucket import Bucket, is_bucket, s3_options
from lapse.base.errors import ConfigError, StorageError
from lapse.base.extras import MissingExtra
from tests.support.spark.object_store import BUCKET, ObjectStore, let_in, object_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("moto")) as running, let_in(running):
        yield running


def test_objects_are_there_as_a_whole(store: ObjectStore) -> None:
    bucket = Bucket(store.place() + "/")
    out = bucket.create("a/b")
    out.write(b"12")
    out.write(b"3")
    out.fsync()
    assert not bucket.has("a/b")
    out.close()
    assert (bucket.has("a/b"), bucket.size("a/b"), bucket.names("a")) == (True, 3, {"a/b"})
    bucket.delete("a/b")
    bucket.delete("a/b")
    assert bucket.names() == set()
    with pytest.raises(StorageError, match=rf"{bucket.uri}/x: "):
        bucket.source("x")
    assert bucket.uri == f"s3://{BUCKET}/{bucket.uri.partition(BUCKET)[2].strip('/')}"


def test_what_is_said_of_an_object_tells_versions_apart(store: ObjectStore) -> None:
    """In the second in which it was written, too; a listing says the same but for that."""
    bucket = Bucket(store.place())
    assert bucket.info("a") is None
    bucket.put("a", b"12")
    first = bucket.info("a")
    bucket.put("a", b"21")
    second = bucket.info("a")
    assert first is not None
    assert second is not None
    assert first.version != second.version
    assert [(one.name, one.size, one.mtime_s) for one in bucket.objects()] == [
        (second.name, second.size, second.mtime_s)
    ]
    assert [*bucket.blocks("a", 1)] == [b"2", b"1"]


def test_whatever_the_store_refuses_is_named(store: ObjectStore) -> None:
    bucket = Bucket("s3://nobodys/t")
    for ask in (lambda: bucket.put("a", b""), lambda: [*bucket.blocks("a", 9)]):
        with pytest.raises(StorageError, match="s3://nobodys/t/a: "):
            ask()
    assert bucket.names() == set(), "a bucket that is not there has nothing"


def test_without_arrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"s3://lake/t needs the package pyarrow"):
        Bucket("s3://lake/t").names()


def test_a_uri_is_no_path() -> None:
    assert [is_bucket(text) for text in ("s3://lake/t", "/s3/t", "t", "s3:/t")] == [
        True, False, False, False
    ]  # fmt: skip


def test_where_the_store_is_the_environment_says() -> None:
    assert s3_options({}) == {}
    assert s3_options({"AWS_DEFAULT_REGION": "eu-west-1"}) == {"region": "eu-west-1"}
    own = {"endpoint_override": "h:9000", "scheme": "http", "region": "us-east-1"}
    assert s3_options({"AWS_ENDPOINT_URL": "http://h:9000"}) == own
    both = {"AWS_ENDPOINT_URL": "http://x:1", "AWS_ENDPOINT_URL_S3": "https://h:9000",
            "AWS_REGION": "r"}  # fmt: skip
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL=minio:9000: allowed is http://"):
        s3_options({"AWS_ENDPOINT_URL": "minio:9000"})
    assert s3_options(both) == {"endpoint_override": "h:9000", "scheme": "https", "region": "r"}
