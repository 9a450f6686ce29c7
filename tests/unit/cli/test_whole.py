"""What a directory is known to lack is said by who copies its logs, and is not copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.log.manifest import manifest_path
from lapse.log.partition_log import PartitionLog
from tests.unit.cli.test_repair import log  # noqa: F401  (six synced segments)

COMPACT = ["-c", "cleanup.policy=compact"]
COMMANDS = {
    "to Kafka": ["convert", "--to-kafka", *COMPACT],
    "to v2": ["convert", "--to-v2"],
    "clean": ["clean", "--engine", "inline", "--force", *COMPACT],
}


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("lost", ["segment", "folder"])
@pytest.mark.parametrize(
    ("command", "in_place"),
    [("to Kafka", False), ("to v2", False), ("to v2", True), ("clean", False), ("clean", True)],
)
def test_a_log_that_lacks_something_is_not_passed_over(
    log: PartitionLog,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    command: str,
    in_place: bool,
    lost: str,
) -> None:
    root, target = log.dir.parent, tmp_path_factory.mktemp("target") / "copy"
    if lost == "folder":
        shutil.rmtree(log.dir)
    else:
        log.segments[2].path().unlink()
    name, *words = COMMANDS[command]
    to = [] if in_place else ["--to", str(target)]
    capsys.readouterr()
    assert main([name, str(root), "--json", *to, *words]) == 1
    [line] = said(capsys)
    assert line["partition"] == str(log.partition)
    assert "put back what is missing, or see `lapse repair" in line["outcome"]
    assert not (target / str(log.partition)).exists()


def test_the_others_are_copied(
    log: PartitionLog,  # noqa: F811
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(log.dir, tmp_path / "other-0", ignore=lambda *_: [".lapse"])
    log.segments[2].path().unlink()
    target = tmp_path_factory.mktemp("target") / "copy"
    capsys.readouterr()
    words = COMMANDS["to Kafka"][1:]
    assert main(["convert", str(tmp_path), "--to", str(target), "--json", *words]) == 1
    outcomes = {line["partition"]: line["outcome"] for line in said(capsys)}
    assert outcomes["other-0"] == "converted"
    assert (target / "other-0").is_dir()
    assert not (target / str(log.partition)).exists()


def test_what_is_wrong_with_one_log_s_list_keeps_no_other(
    log: PartitionLog,  # noqa: F811
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(log.dir, tmp_path / "other-0", ignore=lambda *_: [".lapse"])
    manifest_path(log.dir).unlink()
    manifest_path(log.dir).mkdir()  # nobody can read that, root neither
    target = tmp_path_factory.mktemp("target") / "copy"
    capsys.readouterr()
    words = COMMANDS["to Kafka"][1:]
    assert main(["convert", str(tmp_path), "--to", str(target), "--json", *words]) == 1
    outcomes = {line["partition"]: line["outcome"] for line in said(capsys)}
    assert outcomes["other-0"] == "converted"
    assert "Is a directory" in outcomes[str(log.partition)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_is_no_place_for_a_copy(
    log: PartitionLog,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    target = tmp_path_factory.mktemp("target") / "file"
    target.write_bytes(b"somebody's")
    name, *words = COMMANDS[command]
    assert main([name, str(log.dir.parent), "--to", str(target), *words]) == 2
    assert f"--to {target}: is no directory" in capsys.readouterr().err
    assert target.read_bytes() == b"somebody's"
