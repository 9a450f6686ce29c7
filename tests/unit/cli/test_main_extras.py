"""What `pip install lapse` alone can do, and what it says of the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.cli.main import COMMANDS
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import compacted, make_logs, overwritten
from tests.support.log.logs import NOW

# As if no package of an extra were installed.
_LIGHT = """
import sys
from lapse.base.extras import EXTRA_OF

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRA_OF:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
_LAPSE = _LIGHT + "from lapse.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"


def light(*words: str, code: str = _LAPSE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_logs(tmp_path / "data", {"t": overwritten()}, compacted(), ManualClock(NOW))
    return tmp_path / "data"


def test_help_names_every_command_and_which_extra_some_of_them_need() -> None:
    told = light("--help")
    assert told.returncode == 0
    said = " ".join(told.stdout.split())
    assert all(command in said for command in COMMANDS)
    assert "lapse erase needs the package cryptography" in said
    assert "pip install 'lapse[erase]'" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_what_cannot_run_yet(shell: str) -> None:
    """Its name; who runs it hears what to install."""
    told = light("completion", shell)
    assert (told.returncode, told.stderr) == (0, "")
    assert "erase" in told.stdout


def test_what_commands_need_is_what_their_modules_import() -> None:
    """`lapse --help` goes by the table, and imports none of them."""
    code = f"""{_LIGHT}
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as e:
        print(name, e.name.partition(".")[0])
"""
    told = light(*[command.module for command in COMMANDS.values()], code=code)
    needed = [f"{command.module} {command.needs}" for command in COMMANDS.values() if command.needs]
    assert (told.stderr, told.stdout.splitlines()) == ("", needed)


@pytest.mark.parametrize(
    ("command", "extra"), [("erase", "erase"), ("prove-erased", "erase"), ("clean", "spark")]
)
def test_a_missing_extra_is_one_line_that_names_it_and_exit_3(
    command: str, extra: str, data: Path
) -> None:
    told = light(command, str(data), "-c", "cleanup.policy=compact")
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.count("\n") == 1
    assert f"pip install 'lapse[{extra}]'" in told.stderr


def test_up_starts_nothing_whose_rounds_nobody_could_make(tmp_path: Path) -> None:
    told = light("up", "--data", str(tmp_path / "data"), "--port", "0")
    assert (told.returncode, told.stdout) == (3, "")
    assert "--engine spark needs the package pyspark" in told.stderr
    assert not (tmp_path / "data").exists()


def test_the_offline_tools_plan_clean_and_dump(data: Path) -> None:
    policy = ("-c", "cleanup.policy=compact")
    planned = light("plan", str(data), *policy, "--json")
    assert json.loads(planned.stdout)["partition"] == "t-0", planned.stderr
    cleaned = light("clean", str(data), *policy, "--engine", "inline", "--force", "--json")
    told = json.loads(cleaned.stdout)
    assert told["records_written"] < told["records_read"], cleaned.stderr
    assert light("dump", str(data / "t-0")).returncode == 0


@pytest.mark.parametrize(
    "module", ["lapse.broker.node", "lapse.cli.up", "lapse.client.consumer", "lapse.client.admin"]
)
def test_broker_and_client_are_there(module: str) -> None:
    told = light(code=f"{_LIGHT}import {module}\n")
    assert told.returncode == 0, told.stderr
