"""Spark's classes as an earlier Java loaded them: the next one starts in half the time.

A Spark that starts reads, checks and links some ten thousand classes from jars, which costs four
seconds of CPU. Java writes what it has loaded into an archive when it ends, if it is asked to
(JEP 310 and 350), and a later one maps that. Java itself refuses an archive of another Java, or of
jars that are not the same any more, and then starts without: nothing depends on it but time.

`make setup` makes it; where Lapse was installed otherwise, `python -m
lapse.spark.session.class_archive` does. What is mapped is run, so it lies where no other user may
change anything (`base.own`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from lapse.base.errors import LapseError, StorageError
from lapse.base.fs import Fs, RealFs, make_own_dir, temporary_folder
from lapse.base.own import why_not_own
from lapse.spark.session.java import Java, cache_dirs, find_java

_MODULE = "lapse.spark.session.class_archive"
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # one that does not fit costs time, and no word
_WORK_SECONDS_MAX = 300
_END_SECONDS_MAX = 120.0  # it writes 150 MB at its end


class NoArchive(LapseError):
    """None was made; the message says why. Spark starts as it would without this module."""


def java_options(java: Java, env: Mapping[str, str]) -> str:
    """What makes this Java map the archive that was made with it; "" where there is none."""
    found = _find(java, env)
    return f'"-XX:SharedArchiveFile={found}" {_SILENT}' if found else ""


def make(java: Java, env: Mapping[str, str], fs: Fs) -> Path:
    """Make the archive for this Java, if it is not there: 20 s, 150 MB. Returns where it is.

    Raises NoArchive.
    """
    found = _find(java, env)
    if found:
        return found
    refused = ""
    for folder in cache_dirs(env):
        try:
            make_own_dir(folder)
            return _record(java, folder, fs)
        except (StorageError, OSError, subprocess.TimeoutExpired) as e:
            refused = str(e)
    raise NoArchive(refused or "there is no folder for it")


def _find(java: Java, env: Mapping[str, str]) -> Path | None:
    """The archive, whole: Java checks what its head says, and would fall over one that was cut."""
    stem = _stem(java)
    for folder in cache_dirs(env):
        with contextlib.suppress(OSError):  # what cannot be looked at is not there
            for path in folder.glob(f"{stem}-*.jsa"):
                is_whole = path.name == f"{stem}-{path.stat().st_size}.jsa"
                if is_whole and not why_not_own(folder):
                    return path
    return None


def _stem(java: Java) -> str:
    """What it is made from."""
    spark = Path(pyspark.__file__).parent
    try:
        built = (java.home / "release").read_bytes()  # says exactly which build it is
    except OSError:
        built = str(java.version).encode()
    made_from = b"\0".join([os.fsencode(java.home), built, os.fsencode(spark)])
    return f"spark-{pyspark.__version__}-{hashlib.sha256(made_from).hexdigest()[:16]}"


def _record(java: Java, folder: Path, fs: Fs) -> Path:
    """Have another process of ours start a Spark, use it and let it write at its end."""
    with temporary_folder("classes", folder) as at_work:
        made = at_work / "classes.jsa"
        command = [sys.executable, "-m", _MODULE, str(made)]
        done = subprocess.run(
            command, env={**os.environ, "LAPSE_JAVA_HOME": str(java.home)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_WORK_SECONDS_MAX, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise NoArchive(": ".join(["no Spark came up and ended", *last]))
        if not made.is_file():
            raise NoArchive(f"it cannot be done with {java.describe()}")
        fs.fsync_file(made)
        path = folder / f"{_stem(java)}-{made.stat().st_size}.jsa"
        fs.rename(made, path)
    return path


def _work(made: Path) -> None:
    """Load what jobs and queries use, then end in peace, which writes the file."""
    from lapse.spark.session import session  # noqa: PLC0415  (it imports this module)

    settings = {session.JAVA_OPTIONS: f'"-XX:ArchiveClassesAtExit={made}"'}
    options = session.SessionOptions("local[1]", "lapse class archive", settings)
    spark = session.open_session(options).spark
    try:
        spark.range(9).selectExpr("id % 3 AS n").groupBy("n").count().orderBy("n").collect()
        spark.sparkContext.parallelize(range(2), 2).map(str).collect()
    finally:
        spark.stop()
        session.stop_jvm(_END_SECONDS_MAX)


def archive_classes() -> str:
    """Make it, and say in a line where it is, or why there is none."""
    try:
        path = make(find_java(os.environ), os.environ, RealFs())
    except LapseError as e:
        return f"Spark's classes are not archived: {e}"
    return f"Spark's classes are archived in {path}"


if __name__ == "__main__":
    if sys.argv[1:]:
        _work(Path(sys.argv[1]))
    else:
        sys.stdout.write(archive_classes() + "\n")
