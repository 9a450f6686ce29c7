"""What `make deps` would do, as plain decisions."""

from __future__ import annotations

from tools import deps


def test_what_is_missing_is_named_by_package() -> None:
    assert deps.missing([one for one in deps.WANTED if one != "mvn"]) == ["maven"]
    assert deps.missing(list(deps.WANTED)) == []


def test_it_installs_only_as_root_with_apt() -> None:
    assert deps.plan(["maven"], is_root=True, has_apt=True) == ("installing maven", True)
    text, install = deps.plan(["maven", "kcat"], is_root=False, has_apt=True)
    assert not install
    assert "apt-get install maven kcat" in text
    text, install = deps.plan(["maven"], is_root=True, has_apt=False)
    assert not install
    assert "maven" in text
    assert deps.plan([], is_root=True, has_apt=True) == ("everything is there", False)
