"""`lapse export`: what is refused before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.cli.main import main


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--catalog", "lake"], "--catalog: allowed only with --format iceberg"),
        (["--format", "delta", "--catalog", "lake"], "allowed only with --format iceberg"),
        (["-c", "no.such=1"], "no.such"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(["export", "t", "--to", str(tmp_path / "t"), *words]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_plain_parquet_has_no_place_in_an_object_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "t", "--to", "s3://lake/t"]) == 2
    assert "an object store takes --format delta or iceberg" in capsys.readouterr().err


def test_a_file_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text("mine")
    assert main(["export", "t", "--to", str(tmp_path / "t")]) == 2
    assert "is not a directory" in capsys.readouterr().err
