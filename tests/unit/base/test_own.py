"""Folders that nobody else decides about."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from lapse.base.own import why_not_own

SOMEBODY = 54_321


def to_somebody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's: really so where we are root, else it is us who are another."""
    if os.geteuid() == 0:
        os.chown(path, SOMEBODY, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "above" / "folder"
    made.mkdir(parents=True)
    return made


def test_ours_is_our_own(folder: Path) -> None:
    assert why_not_own(folder) == ""
    assert why_not_own(Path("/")) == ""
    assert why_not_own(folder / ".." / "folder") == ""


def test_a_relative_one_is_told_in_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert why_not_own(Path("folder")) == ""
    folder.chmod(0o777)
    assert str(folder) in why_not_own(Path("folder"))


@pytest.mark.parametrize("which", ["folder", "above"])
def test_another_users_is_not(folder: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what lies below: whoever owns a folder may rename what is in it."""
    to_somebody(folder if which == "folder" else folder.parent, monkeypatch)
    assert "belongs to another user" in why_not_own(folder)


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_one_that_others_may_write_to_is_not(folder: Path, mode: int) -> None:
    """A sticky bit lets others add files all the same."""
    folder.chmod(mode)
    why = why_not_own(folder)
    assert why == f"others may write to {folder} (its mode is {mode:o})"


@pytest.mark.parametrize(("mode", "is_own"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_on_the_way_the_sticky_bit_keeps_others_off(folder: Path, mode: int, is_own: bool) -> None:
    folder.parent.chmod(mode)
    why = why_not_own(folder)
    assert (why == "") == is_own
    assert is_own or str(folder.parent) in why


def test_links_are_followed_and_their_owners_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to("above")
    assert why_not_own(link / "folder") == ""
    folder.parent.chmod(0o777)
    assert str(folder.parent) in why_not_own(link / "folder")
    folder.parent.chmod(0o755)
    to_somebody(link, monkeypatch)
    assert "belongs to another user" in why_not_own(link / "folder")


def test_a_link_in_a_folder_that_others_may_write_to(folder: Path, tmp_path: Path) -> None:
    """They may put another in its place."""
    (folder / "link").symlink_to(tmp_path)
    folder.chmod(0o777)
    assert str(folder) in why_not_own(folder / "link")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many symbolic links" in why_not_own(tmp_path / "a")


def test_what_is_no_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "no directory" in why_not_own(tmp_path / "file")
    assert "No such file" in why_not_own(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "members", "is_own"),
    [("", [], True), ("", ["{me}"], True), ("", ["{me}", "eve"], False), ("staff", [], False)],
)
def test_a_group_of_nobody_else_may_write(
    folder: Path, name: str, members: list[str], is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many systems make folders: each user has a group, and the umask lets it write."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    gid = os.getegid() or 54_321
    if gid == 54_321:  # root's own group is another matter
        os.chown(folder, -1, gid)
        monkeypatch.setattr(os, "getegid", lambda: gid)
    listed = [member.format(me=me) for member in members]
    group = grp.struct_group((name or me, "x", gid, listed))
    monkeypatch.setattr(grp, "getgrgid", {folder.stat().st_gid: group}.__getitem__)
    folder.chmod(0o770)
    assert (why_not_own(folder) == "") == is_own


def test_a_group_without_a_name_is_somebody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grp, "getgrgid", {}.__getitem__)
    folder.chmod(0o770)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o770
    assert "others may write" in why_not_own(folder)
