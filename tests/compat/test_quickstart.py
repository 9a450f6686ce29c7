"""docs/quickstart.md: every command is run, and prints what the page says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lapse.testing.ports import own_port
from tests.support.pages import ROOT, Place, follow, matches, steps, wait_until

PAGE = "docs/quickstart.md"
START = "lapse up --data data"


def test_each_command_prints_what_the_page_says(tmp_path: Path) -> None:
    assert len(steps(PAGE)) > 10
    assert f"\n{START}\n" in (ROOT / PAGE).read_text()
    port, http = own_port(), own_port()
    place = Place(tmp_path, f"127.0.0.1:{port}")
    # Spark cleans in the demo; here the same rounds in one process.
    up = [*START.split(), "--port", str(port), "--http-port", str(http), "--engine", "inline"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            up, cwd=tmp_path, env=place.environment, stdout=log, stderr=log
        ) as running,
    ):
        try:
            said = (tmp_path / "log").read_text
            wait_until(lambda: "ready kafka=" in said(), said)
            follow(PAGE, place)
        finally:
            running.terminate()
            running.wait(60)


@pytest.mark.parametrize(
    ("wanted", "printed", "is_so"),
    [
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b d\n", False),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\nz\n", "a\nz\n", True),
        ("a\n", "a\nb\n", False),
        ("topic  id  …  n\n", "topic  id      n\n", True),
        ("0\t0\t…\tk\n", "0\t0\t2026\tk\n", True),
        ("a  b\n", "a     b\n", True),
        ("a  b\n", "a b\n", False),
        ("a b\n", "a  b\n", False),
        ("  a\n", "a\n", False),
    ],
)
def test_what_counts_as_what_the_page_says(wanted: str, printed: str, is_so: bool) -> None:
    assert matches(wanted, printed) is is_so
