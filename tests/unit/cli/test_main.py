"""The command line itself: help, exit codes, and one line for whatever is wrong."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["clean", "DIR", "--now", "soon"], "--now"),
        (["clean", "DIR", "--engine", "steam"], "inline"),
        (["clean", "DIR", "--no-such-option"], "--no-such-option"),
        (["clean"], "LOGDIR"),
        (["clean", "DIR", "--first-dirty", "-5"], "--first-dirty: -5: allowed"),
        (["clean", "DIR", "--replica-cleaned-to", "-1"], "--replica-cleaned-to: -1"),
        (["clean", "DIR", "--now", str(1 << 63)], "--now: 9223372036854775808: allowed"),
        (["plan", "DIR", "--now", str(1 << 80)], "--now"),
        (["explain", "DIR", "--offset", "-1"], "--offset: -1"),
        (["explain", "DIR", "--now", "-1"], "--now"),
        (["verify", "--before", "DIR", "--after", "DIR", "--now", str(1 << 63)], "--now"),
        (["topic", "create", "t", "-p", str(1 << 31)], "--partitions: 2147483648: allowed"),
        (["prove-erased", "--partition", "-1"], "--partition: -1"),
        (["clean", "DIR", "--memory", "lots"], "--memory lots"),
        (["clean", "DIR", "-c", "retention.ms=-2"], "retention.ms=-2"),
        (["clean", "DIR", "-c", "retention.sm=1"], "retention.sm"),
        (["clean", "DIR", "-c", "retention.ms"], "KEY=VALUE"),
        (["clean", "DIR", "-c", "log.cleaner.dedupe.buffer.size=0"], "dedupe.buffer.size=0"),
        (["plan", "DIR", "--partition", "no-number"], "--partition no-number"),
        (["up", "--data", "DIR", "--port", "70000"], "--port 70000"),
        (["up", "--data", "DIR", "--brokers", "0"], "--brokers 0"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it_and_exit_2(
    words: list[str], names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([str(tmp_path) if word == "DIR" else word for word in words])
    except SystemExit as e:
        code = int(e.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize("words", [["--help"], ["frobnicate"], []])
def test_the_list_of_commands_comes_at_once(words: list[str]) -> None:
    """Nothing is imported for it: it would take a second."""
    code = """
import sys
from lapse.cli.main import COMMANDS, main
try:
    main(sys.argv[1:])
except SystemExit:
    loaded = {command.module for command in COMMANDS.values()} | {"numpy"}
    sys.exit(" ".join(loaded & set(sys.modules)) or 0)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr


def test_help_of_every_command_comes_at_once() -> None:
    """From what was made beforehand; `lapse topic list` too asks no broker for it."""
    code = """
import sys
from lapse.cli.main import COMMANDS, main
for words in ([*map(str.split, COMMANDS)] + [["topic", "list"], ["rounds", "show", "DIR"]]):
    sys.argv = ["lapse", *words, "--help"]
    try:
        main()
    except SystemExit as e:
        assert e.code == 0, words
loaded = {command.module for command in COMMANDS.values()} | {"numpy", "asyncio", "pyspark"}
sys.exit(" ".join(loaded & set(sys.modules)) or 0)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    for command in COMMANDS:
        assert f"usage: lapse {command} " in told.stdout
    assert "usage: lapse topic list " in told.stdout
    assert "usage: lapse rounds show " in told.stdout


def test_what_keeps_the_others_running_stays_small() -> None:
    """`lapse up` lives as long as its children; kernels would be four fifths of its memory."""
    code = """
import sys
import lapse.cli.up
loaded = {"numba", "numpy", "lapse.broker.node", "starlette", "kazoo", "jinja2", "pyspark"}
sys.exit(" ".join(loaded & set(sys.modules)) or 0)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage: lapse " + command in capsys.readouterr().out


def test_a_missing_directory_is_the_environments_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tmp_path / "nowhere")]) == 3
    assert "no such" in capsys.readouterr().err.lower()


def without(number: int, *command: str) -> subprocess.CompletedProcess[str]:
    """What became of a command that was started with one of descriptors 0 to 2 closed."""
    words = f"exec {shlex.join(command)} {number}>&-"
    return subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_file_gets_the_place_of_a_stream_that_is_closed(number: int) -> None:
    """Nor does a child's: what is opened there leads nowhere, and children have it too."""
    code = """
import os
import sys
from lapse.cli.main import main
number, sys.argv = int(sys.argv[1]), ["lapse", "topic", "--help"]
try:
    main()
except SystemExit:
    is_nowhere = os.path.sameopenfile(number, os.open(os.devnull, os.O_RDWR))
    found = is_nowhere, os.get_inheritable(number), None in {sys.stdout, sys.stderr}
    sys.exit(0 if found == (True, True, False) else 7)
"""
    assert without(number, sys.executable, "-c", code, str(number)).returncode == 0


def test_errors_are_never_printed_on_standard_output(tmp_path: Path) -> None:
    words = ["-m", "lapse.cli.main", "plan", str(tmp_path / "nowhere")]
    done = without(2, sys.executable, *words)
    assert (done.returncode, done.stdout) == (3, "")
