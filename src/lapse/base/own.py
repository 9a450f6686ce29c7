"""Whether a folder is our own: only we and root decide what lies there.

Whatever we run, unpickle or believe because it lies at a path of our choosing must lie in such a
folder: compiled kernels (Numba pickles their index), the launcher of Java, temporary folders. Its
owner counts, and so does that of every folder on the way, since a user who may rename one of those
decides too. A folder that others may write to is in order on the way if its sticky bit is set, as
that of the temporary directory is: there one removes and renames only what is one's own.

A group is no other user if it is the user's private group, that is, has his name and no other
member (Debian's sshd decides likewise about keys), or is root's and has no other member. Rights
by POSIX ACL show in the group's bits.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_ROOT = 0
_LINKS_MAX = 40  # as Linux follows in one path


def why_not_own(folder: Path) -> str:
    """Why others may decide what lies in a folder, which is there; "" where they may not."""
    parts, at, links = list(folder.absolute().parts[1:]), Path(folder.absolute().anchor), 0
    while True:
        try:
            found = at.lstat()
        except OSError as e:
            return f"{at}: {e.strerror or e}"
        if why := _by_owner(at, found):
            return why
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS_MAX:
                return f"{folder}: too many symbolic links"
            target = at.parent / at.readlink()
            parts, at = [*target.parts[1:], *parts], Path(target.anchor)
            continue
        if not stat.S_ISDIR(found.st_mode):
            return f"{at} is no directory"
        if why := _by_mode(at, found, is_last=not parts):
            return why
        if not parts:
            return ""
        name = parts.pop(0)
        at = at.parent if name == ".." else at / name


def _by_owner(path: Path, found: os.stat_result) -> str:
    if found.st_uid in {_ROOT, os.geteuid()}:
        return ""
    return f"{path} belongs to another user ({found.st_uid})"


def _by_mode(path: Path, found: os.stat_result, *, is_last: bool) -> str:
    others = bool(found.st_mode & stat.S_IWOTH)
    others |= bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid)
    if not others or (found.st_mode & stat.S_ISVTX and not is_last):
        return ""
    return f"others may write to {path} (its mode is {stat.S_IMODE(found.st_mode):o})"


def _is_private_group(gid: int) -> bool:
    """Whether only this user and root are in a group."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # neither has to have a name, in a container say
        return False
    is_his = gid == _ROOT or (group.gr_name == user and gid == os.getegid())
    return is_his and set(group.gr_mem) <= {user, "root"}
