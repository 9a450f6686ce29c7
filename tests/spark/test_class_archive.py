"""Spark maps the classes that an earlier one left, and a Java that cannot does without."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.spark.session import class_archive
from lapse.spark.session.session import OpenSession
from tests.spark.processes import needs_proc


@pytest.fixture
def kept(archive: Path | None) -> Path:
    if archive is None:
        pytest.skip("this Java makes no archive")
    return archive


@needs_proc
def test_a_session_maps_it(session: OpenSession, kept: Path) -> None:
    java = session.spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(kept) in Path(f"/proc/{java}/maps").read_text()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_the_head(path: Path) -> None:
    head = bytearray(path.read_bytes())
    head[0] ^= 1
    path.write_bytes(head)


@pytest.mark.parametrize("harm", [empty, flip_the_head, Path.unlink])
def test_one_that_is_damaged_costs_no_word(
    session: OpenSession, kept: Path, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    damaged = tmp_path / kept.name
    shutil.copyfile(kept, damaged)
    told = class_archive.java_options(session.java, {}).replace(str(kept), str(damaged))
    harm(damaged)
    command = [str(session.java.executable), *shlex.split(told), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("openjdk version")
