"""What real shells complete, typed into a terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.cli.main import COMMANDS, main

PROMPT = "READY>"
SHOW = """lapse() { printf '[%s]' "$@"; }"""  # what would have been run
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"source ./script; {SHOW}"),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"autoload -Uz compinit && compinit -u -D; source ./script; {SHOW}",
    ),
    "fish": (
        ["fish", "--no-config", "-i", "-C", f"function fish_prompt; echo '{PROMPT}'; end"],
        "source ./script; function lapse; printf '[%s]' $argv; end",
    ),
}
WAIT_SECONDS = 60


class Terminal:
    """A shell at a terminal."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self._end, far = pty.openpty()
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm", "PS1": PROMPT,
            "LANG": "C.UTF-8",
        }  # fmt: skip
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *words],  # fish wants the terminal for itself
            stdin=far, stdout=far, stderr=far, cwd=folder, env=environment,
        )  # fmt: skip
        os.close(far)

    def until(self, wanted: str) -> str:
        """What is shown until `wanted` is among it."""
        shown, deadline = "", SystemClock().monotonic() + WAIT_SECONDS
        while wanted not in shown:
            left = deadline - SystemClock().monotonic()
            assert left > 0, f"{wanted!r} was not shown, but {shown!r}"
            if select.select([self._end], [], [], left)[0]:
                shown += os.read(self._end, 65536).decode(errors="replace")
        return shown

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)


@cache
def script_of(shell: str) -> bytes:
    lapse = [sys.executable, "-m", "lapse", "completion", shell]
    return subprocess.run(lapse, capture_output=True, check=True).stdout


@pytest.fixture(params=list(SHELLS))
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    words, before = SHELLS[request.param]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} here; make deps installs it")
    (tmp_path / "script").write_bytes(script_of(words[0]))
    (tmp_path / "a-log-directory").mkdir()
    found = Terminal(words, tmp_path)
    try:
        found.until(PROMPT)
        found.type(f"{before}\r")
        found.until(PROMPT)
        yield found
    finally:
        found.close()


@pytest.mark.parametrize(
    ("typed", "run"),
    [
        ("explai", "[explain]"),
        ("topic desc", "[topic][describe]"),
        ("topic create orders --repl", "[topic][create][orders][--replication-factor]"),
        ("record produce orders --key-s", "[record][produce][orders][--key-separator]"),
        ("clean --engine inl", "[clean][--engine][inline]"),
        ("export --format ice", "[export][--format][iceberg]"),
        ("plan a-log-d", "[plan][a-log-directory"),
        ("completion fi", "[completion][fish]"),
    ],
)
def test_what_is_typed_is_completed(terminal: Terminal, typed: str, run: str) -> None:
    terminal.type(f"lapse {typed}\t")
    terminal.type("\r")
    terminal.until(run)


def test_every_command_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        for name in COMMANDS:
            assert f"/{name}" in script, (shell, name)
        assert "%(" not in script
