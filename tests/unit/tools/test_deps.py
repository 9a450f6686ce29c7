"""What `make deps` would do, as plain decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_what_cannot_be_fetched_is_said_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As without a network: the tests that want it skip, with a line of their own."""
    monkeypatch.setattr(deps, "BIN", tmp_path / "bin")
    monkeypatch.setattr(deps, "WANTED", {})
    monkeypatch.setattr("shutil.which", lambda command: f"/usr/bin/{command}")
    monkeypatch.setattr("subprocess.call", lambda *_, **__: 100)
    assert deps.main() == 0
    assert "promtool" in capsys.readouterr().out
    assert not (tmp_path / "bin").exists()
