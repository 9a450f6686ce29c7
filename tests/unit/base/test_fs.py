"""File operations: what they leave behind, and errors that name the file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base import fs as fs_module
from lapse.base.errors import StorageError
from lapse.base.fs import RealFs, make_own_dir, make_private, temporary_folder
from lapse.base.secret import Secret
from lapse.testing.clock import ManualClock

FS = RealFs()


def read_fd(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


# --- append files ---------------------------------------------------------------------------------


def test_append_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = FS.open_append(path)
    assert (file.path, file.size) == (path, 0)
    file.write(b"one", bytearray(b"two"), memoryview(b"three"))
    file.write()
    file.fsync()
    file.close()
    file.close()  # twice is fine
    file = FS.open_append(path)
    assert file.size == 11
    file.write(b"!")
    assert os.fstat(file.fileno()).st_size == file.size == 12
    file.close()
    assert path.read_bytes() == b"onetwothree!"


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take less than it is given."""
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, at: real(fd, [b"".join(buffers)[:4]], at)
    )
    real_one = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_one(fd, data[:2], at))
    file = FS.open_append(tmp_path / "a")
    file.write(b"abc", b"defghi", b"j")
    file.write(b"klmnopq")
    file.close()
    assert file.size == 17
    assert (tmp_path / "a").read_bytes() == b"abcdefghijklmnopq"
    for content in (b"abcdefg", bytearray(b"xyz"), memoryview(b"12345"), b""):
        FS.write_file(tmp_path / "b", content)
        assert (tmp_path / "b").read_bytes() == content


def test_a_failed_write_is_a_storage_error_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FS.open_append(tmp_path / "a")
    file.write(b"fine")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StorageError, match=rf"writing {file.path}: No space left"):
        file.write(b"more")
    with pytest.raises(StorageError, match=rf"writing {tmp_path / 'b'}: No space left"):
        FS.write_file(tmp_path / "b", b"more")
    assert file.size == 4
    file.close()


SIZES = [0, 1, 4095, 4096, 4097, 300_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("position", [0, 1, 5000])
@pytest.mark.parametrize("in_kernel", [True, False])
def test_copy_from(
    tmp_path: Path, size: int, position: int, in_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_kernel:  # another device, or a system without the call

        def crossing(*_: object) -> int:
            raise OSError(errno.EXDEV, "no")

        monkeypatch.setattr(os, "copy_file_range", crossing, raising=False)
        monkeypatch.setattr(fs_module, "_COPY_CHUNK", 4096)
    source = tmp_path / "source"
    data = os.urandom(position + size + 100)
    source.write_bytes(data)
    fd = read_fd(source)
    file = FS.open_append(tmp_path / "target")
    file.write(b"before")
    file.copy_from(fd, position, size)
    file.write(b"after")
    file.close()
    os.close(fd)
    assert file.size == 11 + size
    expected = b"before" + data[position : position + size] + b"after"
    assert (tmp_path / "target").read_bytes() == expected


@pytest.mark.parametrize("in_kernel", [True, False])
def test_copy_from_a_source_that_ends_early(
    tmp_path: Path, in_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_kernel:
        monkeypatch.delattr(os, "copy_file_range")
    (tmp_path / "source").write_bytes(b"12345")
    fd = read_fd(tmp_path / "source")
    file = FS.open_append(tmp_path / "target")
    with pytest.raises(StorageError, match="target: the source ends 7 bytes early"):
        file.copy_from(fd, 0, 12)
    file.close()
    os.close(fd)


def test_other_copy_errors_are_not_taken_for_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    (tmp_path / "source").write_bytes(b"12345")
    fd = read_fd(tmp_path / "source")
    file = FS.open_append(tmp_path / "target")
    with pytest.raises(StorageError, match=r"copying to .*target: full"):
        file.copy_from(fd, 0, 5)
    file.close()
    os.close(fd)


# --- whole files ----------------------------------------------------------------------------------


def test_replace_file_shows_the_old_or_the_new_one(tmp_path: Path) -> None:
    """The new content is synced before the name is its own; nothing else is left."""
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    steps: list[tuple[str, bytes]] = []

    class Watched(RealFs):
        def write_file(self, path: Path, data: bytes) -> None:
            super().write_file(path, data)
            self.note("write")

        def fsync_file(self, path: Path) -> None:
            super().fsync_file(path)
            self.note("fsync")

        def rename(self, source: Path, target: Path) -> None:
            self.note("before rename")
            super().rename(source, target)
            self.note("after rename")

        def fsync_dir(self, path: Path) -> None:
            super().fsync_dir(path)
            self.note("fsync dir")

        def note(self, step: str) -> None:
            steps.append((step, path.read_bytes()))

    Watched().replace_file(path, b"new")
    assert steps == [
        ("write", b"old"),
        ("fsync", b"old"),
        ("before rename", b"old"),
        ("after rename", b"new"),
        ("fsync dir", b"new"),
    ]
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_a_private_file_is_its_owners_alone_from_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings"
    temp = tmp_path / "settings.tmp"
    temp.write_bytes(b"old")
    temp.chmod(0o644)
    modes: list[int] = []
    opened = os.open

    def watched(name: str, flags: int, mode: int = 0o777) -> int:
        fd = opened(name, flags, mode)
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return fd

    monkeypatch.setattr(os, "open", watched)
    umask = os.umask(0)
    try:
        RealFs().replace_file(path, Secret("new"))
    finally:
        os.umask(umask)
    assert modes[0] == 0o600
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not temp.exists()


def test_what_lies_at_a_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    """Somebody who foresaw the name put a link there, or a file that he has open."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    temp = tmp_path / "checkpoint.tmp"
    temp.symlink_to(precious)
    FS.replace_file(tmp_path / "checkpoint", b"new")
    assert precious.read_bytes() == b"precious"
    temp.write_bytes(b"")
    with open(temp, "rb") as theirs:
        FS.replace_file(tmp_path / "checkpoint", b"newer")
        assert theirs.read() == b""
    assert (tmp_path / "checkpoint").read_bytes() == b"newer"
    temp.symlink_to(precious)
    with pytest.raises(StorageError, match=r"checkpoint\.tmp"):
        FS.write_file(temp, b"through it")
    assert precious.read_bytes() == b"precious"


def test_a_file_is_made_private_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "store"
    umask = os.umask(0)
    try:
        make_private(path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"kept")
    path.chmod(0o644)
    make_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"kept"


def test_a_temporary_folder_is_ours_alone_and_goes(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with temporary_folder("test", tmp_path) as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert folder.parent == tmp_path
            FS.write_file(folder / "a", b"")
            names.add(folder.name)
    assert len(names) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_others_could_swap_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    refused = pytest.raises(StorageError, match=r"others may write to .*choose another")
    with refused, temporary_folder("test", tmp_path):
        pytest.fail("it was handed out")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StorageError, match="set TMPDIR"), temporary_folder("test"):
        pytest.fail("it was handed out")
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o1777)
    with temporary_folder("test"):
        pass


def test_own_folders_are_made_private_with_all_that_is_missing(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make_own_dir(tmp_path / "a" / "b")
    finally:
        os.umask(umask)
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    make_own_dir(tmp_path / "a" / "b")
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(StorageError, match="others may write to"):
        make_own_dir(tmp_path / "a" / "b")


def test_replace_file_leaves_the_old_one_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageError, match="checkpoint"):
        FS.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    FS.replace_file(path, b"newer")  # what the failure left behind is no obstacle
    assert path.read_bytes() == b"newer"


def test_write_file_is_whole(tmp_path: Path) -> None:
    FS.write_file(tmp_path / "a", b"a long content")
    FS.write_file(tmp_path / "a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"


def test_names_and_sizes(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    FS.write_file(a, b"12345")
    FS.truncate(a, 2)
    FS.set_mtime_ns(a, 1_234_567_890_123_456_789)
    assert a.stat().st_mtime_ns == 1_234_567_890_123_456_789
    FS.write_file(b, b"b")
    FS.rename(a, b)  # over what is there
    assert b.read_bytes() == b"12"
    assert not a.exists()
    FS.unlink(b)
    FS.unlink(b)  # not there is fine
    deep = tmp_path / "x" / "y"
    FS.make_dir(deep)
    FS.make_dir(deep)
    FS.write_file(deep / "f", b"")
    FS.fsync_dir(deep)
    FS.remove_tree(tmp_path / "x")
    FS.remove_tree(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("doing", "operation"),
    [
        ("opening", FS.open_append),
        ("writing", lambda p: FS.write_file(p, b"")),
        ("writing", lambda p: FS.replace_file(p, b"")),
        ("renaming", lambda p: FS.rename(p, p)),
        ("truncating", lambda p: FS.truncate(p, 0)),
        ("touching", lambda p: FS.set_mtime_ns(p, 0)),
        ("syncing", FS.fsync_file),
        ("syncing", FS.fsync_dir),
        ("syncing", lambda p: FS.sync_all([p])),
        ("syncing", lambda p: FS.sync_all([p] * RealFs.SYNCFS_FROM)),
    ],
)
def test_errors_name_the_file(
    tmp_path: Path, doing: str, operation: Callable[[Path], object]
) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(StorageError, match=rf"{doing} {path}.*: No such file") as e:
        operation(path)
    assert isinstance(e.value.__cause__, OSError)


def test_more_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(StorageError, match=f"creating {path}"):
        FS.make_dir(path)
    with pytest.raises(StorageError, match=f"removing {tmp_path}"):
        FS.unlink(tmp_path)
    with pytest.raises(StorageError, match=f"removing {path}"):
        FS.remove_tree(path)
    with pytest.raises(StorageError, match=f"syncing {path}"):
        FS.fsync_dir(path)


# --- syncing many ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, RealFs.SYNCFS_FROM - 1, RealFs.SYNCFS_FROM, 40])
@pytest.mark.parametrize("has_syncfs", [True, False])
def test_sync_all(
    tmp_path: Path, count: int, has_syncfs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few: one by one. Many: the whole file system at once, where there is such a call."""
    paths = [tmp_path / str(n) for n in range(count)]
    for path in paths:
        path.write_bytes(b"x")
    synced: list[Path] = []
    whole: list[Path] = []
    monkeypatch.setattr(RealFs, "fsync_file", lambda _, path: synced.append(path))

    def syncfs(path: Path) -> bool:
        whole.append(path)
        return has_syncfs

    monkeypatch.setattr(fs_module, "_syncfs", syncfs)
    monkeypatch.setattr(fs_module, "_clock", ManualClock())  # no disk is slow
    FS.sync_all(paths)
    many = count >= RealFs.SYNCFS_FROM
    assert bool(whole) == many
    assert synced == ([] if many and has_syncfs else paths)


@pytest.mark.parametrize(("count", "synced"), [(15, 15), (20, 4), (200, 11)])
def test_where_each_sync_is_dear_the_rest_is_synced_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int, synced: int
) -> None:
    """As of a disk that turns; but not for the last few files."""
    paths, clock = [Path(str(n)) for n in range(count)], ManualClock(0)
    each, whole = list[Path](), list[Path]()

    def fsync_file(_: RealFs, path: Path) -> None:
        clock.advance(30 if count == 20 else 10)
        each.append(path)

    monkeypatch.setattr(RealFs, "fsync_file", fsync_file)
    monkeypatch.setattr(fs_module, "_clock", clock)
    monkeypatch.setattr(fs_module, "_syncfs", lambda path: not whole.append(path))
    FS.sync_all(paths)
    assert each == paths[:synced]
    assert whole == ([] if synced == count else [paths[synced]])


def test_syncfs_itself(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert fs_module._syncfs(tmp_path / "a") in {True, False}


def test_room_that_was_reserved_and_not_used_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = RealFs().open_append(path)
    file.write(b"before")
    file.reserve(1 << 20)
    assert path.stat().st_size == 1 << 20
    file.write(b", after")
    assert file.size == 13
    file.close()
    assert path.read_bytes() == b"before, after"
    file = RealFs().open_append(path)
    file.reserve(5)  # less than there is: nothing to do
    file.close()
    assert path.read_bytes() == b"before, after"
    file = RealFs().open_append(path)
    file.reserve(1 << 62)  # more than any disk has: only a favour, so no error
    file.write(b"!")
    file.close()
    assert path.read_bytes() == b"before, after!"
