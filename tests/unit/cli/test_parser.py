"""Words of a command line that are wrong: what is said, in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lapse.cli.main import COMMANDS, build_parser, main
from lapse.cli.parser import USAGE, below


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topc"], "topc: there is no such; did you mean topic?"),
        (["topic", "lst"], "lst: there is no such; did you mean list?"),
        (["topic", "frobnicate"], "frobnicate: there is no such"),
        (["clean", "DIR", "--partion", "t-0"], "there is no option --partion; did you mean --part"),
        (["clean", "DIR", "--partion=t-0"], "there is no option --partion; did you mean --part"),
        (["topic", "list", "--jsn"], "there is no option --jsn; did you mean --json?"),
        (["topic", "list", "--frobnicate"], "no option --frobnicate; see `lapse topic --"),
        (["clean", "DIR", "EXTRA"], "EXTRA: one word too many"),
        (["clean", "DIR", "--engine", "sprk"], "sprk: there is no such; did you mean spark?"),
        (["clean", "DIR", "--engine", "steam"], "steam: there is no such; allowed: spark, inline"),
        (["clean", "DIR", "-c", "retention.sm=1"], "retention.sm; did you mean retention.ms?"),
    ],
)
def test_what_was_meant_is_named(
    words: Sequence[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([str(tmp_path) if word == "DIR" else word for word in words])
    except SystemExit as e:
        code = int(str(e.code))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (USAGE, "", 1)
    assert said in err


@pytest.mark.parametrize("name", list(COMMANDS))
def test_no_option_has_a_short_form_that_nobody_wrote(name: str) -> None:
    """A script that says `--part` would mean something else once there is a `--parts`."""
    for parser in below(build_parser(name)):
        assert not parser.allow_abbrev, parser.prog


@pytest.mark.parametrize("how", [["-m", "lapse"], ["-m", "lapse.cli.main"]])
def test_which_lapse_it_is(how: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *how, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("lapse 0.")
