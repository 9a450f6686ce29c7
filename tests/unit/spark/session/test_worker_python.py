"""A Python for Spark's workers: ours, one of another version, one without Lapse, none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lapse.spark.session.worker_python import trouble_of


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_our_own_is_fine_by_whatever_name(tmp_path: Path) -> None:
    assert trouble_of(sys.executable) == ""
    assert trouble_of(program(tmp_path, f'exec "{sys.executable}" "$@"')) == ""


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("echo 3.8", "it is Python 3.8, and this is"),
        ("echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'lapse'\" >&2; exit 1",
         "No module named 'lapse'"),
        ("exit 3", "exit code 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, text: str, trouble: str) -> None:
    assert trouble in trouble_of(program(tmp_path, text))


def test_none_at_all(tmp_path: Path) -> None:
    assert "it does not start" in trouble_of(str(tmp_path / "none"))
