"""To look who owns a directory waits for nobody, and takes nobody's lock away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.lock import LOCK, disown, lock_holder, own


def test_a_link_to_a_lock_of_this_process_is_not_followed(tmp_path: Path) -> None:
    """Opening and closing the file would give the lock up, without a word."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    (other / LOCK).symlink_to(mine / LOCK)
    lock = own(mine, mine.resolve(), RealFs())
    try:
        with pytest.raises(StorageError, match="opening"):
            lock_holder(other, follows_link=False)
        ask = "import sys; from pathlib import Path; from lapse.log.lock import lock_holder\n"
        ask += "print(lock_holder(Path(sys.argv[1])))"
        said = subprocess.run([sys.executable, "-c", ask, mine], capture_output=True, check=True)
        assert int(said.stdout) == os.getpid()
    finally:
        disown(mine.resolve(), lock)


def test_who_owns_a_directory_through_a_link_is_found_as_kafka_finds_it(tmp_path: Path) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    real.mkdir()
    linked.mkdir()
    (linked / LOCK).symlink_to(real / LOCK)
    assert lock_holder(linked) is None  # it leads nowhere yet
    hold = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); "
    hold += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, real / LOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert lock_holder(linked) == holder.pid
        holder.communicate()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    assert lock_holder(tmp_path) is None
