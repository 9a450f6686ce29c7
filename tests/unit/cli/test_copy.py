"""`lapse copy`: what it refuses before anything starts; what it does: tests/spark/test_copy.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.cli.main import main

WORDS = ["copy", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--topic", "a"]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--topic", "b", "--as", "c"], 2, "--as c: one topic can have another name"),
        (["--batch-offsets", "0"], 2, "--batch-offsets 0: allowed is a number from 1 on"),
        (["--as", "no/name"], 3, "no/name"),
        (["--from-config", "nowhere.properties"], 3, "nowhere.properties: No such file"),
        ([], 3, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, said: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert main([*WORDS, "--checkpoint", str(checkpoint), *more]) == code
    assert said in capsys.readouterr().err
    assert not checkpoint.exists()
