"""The list of files and the picture are what the code says, and the check can tell when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import file_map


def test_the_pages_are_current() -> None:
    assert file_map.PAGE.read_text(encoding="utf-8") == file_map.page()
    assert file_map.ROOMS.read_text(encoding="utf-8") == file_map.rooms_page()


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("One thing.", "One thing"),
        ("One thing: it\nis long. And more.", "One thing: it is long"),
        ("KIP-107, D-5 … D-8\n\nMore.", "KIP-107, D-5 … D-8"),
        ("", ""),
    ],
)
def test_a_line_is_the_first_sentence(docstring: str, expected: str) -> None:
    assert file_map.sentence(docstring) == expected


def test_check_fails_when_a_docstring_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(file_map, "ROOT", tmp_path)
    monkeypatch.setattr(file_map, "PAGE", tmp_path / "files.md")
    monkeypatch.setattr(file_map, "ROOMS", tmp_path / "rooms.md")
    assert file_map.main(["--check"]) == 1
    assert "make map" in capsys.readouterr().out
    assert file_map.main([]) == 0
    assert file_map.main(["--check"]) == 0
    file_map.PAGE.write_text(file_map.page() + "\n")
    assert file_map.main(["--check"]) == 1
    assert file_map.main([]) == 0
    file_map.ROOMS.unlink()
    assert file_map.main(["--check"]) == 1


def test_the_picture_has_who_imports_whom() -> None:
    """Without what follows from other arrows."""
    page = file_map.rooms_page()
    assert "    broker --> lifecycle\n" in page
    assert "    service --> owner\n" in page
    assert "    service --> decide\n" not in page  # by way of its owner
