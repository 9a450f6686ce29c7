"""A disk of the run's own that can be filled: a small ext4 in a file where root is, else a folder.

It is mounted in a mount namespace of this process, so it is gone when the last process of the run
is. Without root a full disk is played by the interposer, and there it is never really full.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.interpose import Interposer

DISK_BYTES = 2 << 30  # of a sparse file
_KEPT_FREE_BYTES = 0
_CLONE_NEWNS = 0x00020000
_MOUNT = ("mount", "-o", "loop,noatime")


class Disk:
    """Where the data directory lies.

    Attributes:
        path: a folder on it.
        is_real: whether it can be really full.
    """

    def __init__(self, path: Path, *, is_real: bool) -> None:
        self.path, self.is_real = path, is_real
        self._ballast = path / "ballast"

    def fill(self, interposer: Interposer | None) -> None:
        """No byte is free any more."""
        if not self.is_real:
            assert interposer is not None
            interposer.fill_disk()
            return
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:  # what is given back meanwhile too
                free = shutil.disk_usage(self.path).free
                at = file.seek(0, os.SEEK_END)
                os.posix_fallocate(file.fileno(), at, max(free - _KEPT_FREE_BYTES, 4096))
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def empty(self, interposer: Interposer | None) -> None:
        """There is room again."""
        if self.is_real:
            self._ballast.unlink(missing_ok=True)
        elif interposer is not None:
            interposer.mend_disk()


@contextlib.contextmanager
def disk_of_its_own(folder: Path) -> Iterator[Disk]:
    """Mounted below `folder` if that can be; unmounted at the end."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    if not _may_mount():
        yield Disk(place, is_real=False)
        return
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    made = subprocess.run(
        ["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(image)],
        capture_output=True, check=False,
    )  # fmt: skip
    mounted = made.returncode == 0 and (
        subprocess.run([*_MOUNT, str(image), str(place)], capture_output=True, check=False)
    ).returncode == 0  # fmt: skip
    try:
        yield Disk(place, is_real=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


def _may_mount() -> bool:
    """Whether this is root, with a mount namespace of its own from now on."""
    if os.geteuid() or not all(map(shutil.which, ("mount", "umount", "mkfs.ext4"))):
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        return False
    private = ["mount", "--make-rprivate", "/"]
    return subprocess.run(private, capture_output=True, check=False).returncode == 0
