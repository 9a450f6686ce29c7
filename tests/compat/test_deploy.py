"""Units by systemd's own judge; and what they and the image start, by our parser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
LAPSE = Path(sys.prefix) / "bin" / "lapse"


def started_by(unit: Path) -> list[str]:
    [command] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    return str(command).split()


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_no_fault_with_a_unit(unit: Path, tmp_path: Path) -> None:
    judge = shutil.which("systemd-analyze")
    if judge is None:
        pytest.skip("no systemd-analyze: make deps")
    for one in UNITS:
        text = one.read_text().replace("/opt/lapse/bin/lapse", str(LAPSE))
        (tmp_path / one.name).write_text(text)
    done = subprocess.run(
        [judge, "verify", "--man=no", tmp_path / unit.name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_there_is(unit: Path) -> None:
    program, command, *words = started_by(unit)
    assert Path(program).name == "lapse"
    assert build_parser(command).parse_args([command, *words]) is not None


def test_the_image_starts_what_there_is() -> None:
    text = DOCKERFILE.read_text()
    [first] = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    [words] = re.findall(r"^CMD (\[.*)$", text, re.MULTILINE)
    assert json.loads(first) == ["lapse"]
    command, *options = json.loads(words)
    assert build_parser(command).parse_args([command, *options]) is not None
