"""Where Spark's classes are kept, and when they are believed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.spark.session import class_archive
from lapse.spark.session.class_archive import NoArchive, java_options, make
from lapse.spark.session.java import Java, cache_dirs

NOTHING_SET: dict[str, str] = {}


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """One that answers and starts nothing, in an environment of its own."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    executable = tmp_path / "jdk" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\"' >&2; [ $# = 2 ]\n")
    executable.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.9"')
    return Java(tmp_path / "jdk", 17, "PATH")


def folder() -> Path:
    return next(cache_dirs(NOTHING_SET))


def kept(java: Java, octets: int = 3) -> Path:
    """An archive where one would be made."""
    folder().mkdir(parents=True, mode=0o700)
    path = folder() / f"{class_archive._stem(java)}-{octets}.jsa"
    path.write_bytes(b"jsa")
    return path


def test_without_one_java_is_told_nothing(java: Java) -> None:
    assert java_options(java, NOTHING_SET) == ""


def test_it_is_for_one_build_of_java_alone(java: Java) -> None:
    path = kept(java)
    assert f'"-XX:SharedArchiveFile={path}"' in java_options(java, NOTHING_SET)
    (java.home / "release").write_text('JAVA_VERSION="17.0.10"')
    assert java_options(java, NOTHING_SET) == ""


def test_it_is_not_run_where_others_may_put_theirs(java: Java) -> None:
    path = kept(java)
    path.parent.chmod(0o777)
    assert java_options(java, NOTHING_SET) == ""
    path.unlink()
    with pytest.raises(NoArchive, match=str(path.parent)):
        make(java, NOTHING_SET, RealFs())


def test_one_that_is_there_is_not_made_again(java: Java) -> None:
    path = kept(java)
    assert make(java, NOTHING_SET, RealFs()) == path


def test_what_cannot_be_looked_at_is_not_there(java: Java) -> None:
    """A session starts whatever became of it."""
    path = kept(java)
    path.unlink()
    path.symlink_to(path.with_name("nothing"))
    assert java_options(java, NOTHING_SET) == ""
    (java.home / "release").unlink()
    (java.home / "release").symlink_to("release")  # a loop
    assert java_options(java, NOTHING_SET) == ""


def test_one_that_was_cut_is_not_believed(java: Java) -> None:
    kept(java, octets=4)
    assert java_options(java, NOTHING_SET) == ""


def test_a_spark_that_does_not_start_leaves_nothing(
    java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_JAVA_HOME", str(java.home))
    said = class_archive.archive_classes()
    assert said.startswith("Spark's classes are not archived: no Spark came up and ended: ")
    assert "Spark did not start at local[1]" in said
    assert not list(folder().iterdir())
