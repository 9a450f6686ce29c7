"""docs/quickstart.md: every command is run, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.testing.ports import own_port

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
START = "lapse up --data data"
WAIT_SECONDS, POLL_SECONDS = 120.0, 0.5
LOOKS = ("lapse record consume", "lapse explain")  # asked again until the page is right


def steps() -> list[tuple[str, str]]:
    """Commands of the page, and what each prints."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = step.partition("\n")
            found.append((command, printed))
    return found


def matches(wanted: str, printed: str) -> bool:
    """`…` is anything, in a line; on a line of its own, any lines. Columns may be wider."""
    lines = []
    for line in wanted.splitlines():
        if line == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            columns = re.sub(r"  +…  +", "…", line)
            lines.append(re.escape(columns).replace("…", ".*") + r" *\n")
    return re.fullmatch("".join(lines), printed) is not None


def test_each_command_prints_what_the_page_says(tmp_path: Path) -> None:
    found = steps()
    assert len(found) > 10
    assert f"\n{START}\n" in PAGE.read_text()
    port, http = own_port(), own_port()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LAPSE_BOOTSTRAP_SERVER": f"127.0.0.1:{port}",
        "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }  # fmt: skip
    # Spark cleans in the demo; here the same rounds in one process.
    up = [*START.split(), "--port", str(port), "--http-port", str(http), "--engine", "inline"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(up, cwd=tmp_path, env=environment, stdout=log, stderr=log) as running,
    ):
        try:
            said = partial(_text, tmp_path / "log")
            _until(lambda: "ready kafka=" in said(), said)
            for command, wanted in found:
                _follow(command, wanted, tmp_path, environment)
        finally:
            running.terminate()
            running.wait(60)


def _text(path: Path) -> str:
    return path.read_text()


def _follow(command: str, wanted: str, folder: Path, environment: Mapping[str, str]) -> None:
    """What only looks is asked again until the page is right."""
    printed = ""

    def is_right() -> bool:
        nonlocal printed
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, text=True, check=False,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        printed = done.stdout
        return matches(wanted, printed)

    if command.startswith(LOOKS):
        _until(is_right, lambda: f"{command}\n{printed}\nis not\n{wanted}")
    else:
        assert is_right(), f"{command}\n{printed}\nis not\n{wanted}"


def _until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + WAIT_SECONDS
    while not holds():
        assert clock.monotonic() < deadline, what()
        clock.sleep(POLL_SECONDS)


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
    ],
)
def test_what_counts_as_what_the_page_says(wanted: str, printed: str, is_so: bool) -> None:
    assert matches(wanted, printed) is is_so
