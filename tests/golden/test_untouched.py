"""What this version does not clean stays as it is, byte for byte, and the reason is shown.

ADR-12: a log with an attribute bit nobody knows is left untouched by `clean`, and both
`clean` and `plan` exit 1.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.records.builder import BatchSpec, NewRecord, build_batch

Contents = dict[str, tuple[bytes, int]]


def contents(directory: Path) -> Contents:
    """Every file below: bytes and modification time."""
    return {
        str(p.relative_to(directory)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(directory.rglob("*"))
        if p.is_file()
    }


def from_case(name: str) -> Callable[[Path, Path], None]:
    def make(cases: Path, directory: Path) -> None:
        shutil.copytree(cases / name / "before", directory)

    return make


def with_unknown_bit(_: Path, directory: Path) -> None:
    """Two sealed segments and an empty active one; the second has attribute bit 7."""
    log = directory / "t-0"
    log.mkdir(parents=True)
    records = [NewRecord(b"k", b"v")]
    for base, more in ((0, 0), (1, 0x80)):
        spec = BatchSpec(base_offset=base, attributes_more=more)
        (log / f"{base:020d}.log").write_bytes(build_batch(records, spec))
    (log / f"{2:020d}.log").write_bytes(b"")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_unknown_bit, "unknown attribute bits 0x80"),
    ],
)
@pytest.mark.parametrize("engine", ["inline"])
def test_clean_leaves_it_alone_and_says_why(
    make: Callable[[Path, Path], None],
    reason: str,
    engine: str,
    oracle_cases: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "data"
    make(oracle_cases, directory)
    before = contents(directory)
    words = [str(directory), "-c", "cleanup.policy=compact", "--json"]
    for command in (["clean", *words, "--force", "--engine", engine], ["plan", *words]):
        assert main(command) == 1
        [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        assert reason in line.get("outcome", line.get("explanation"))
        assert contents(directory) == before


def test_an_unknown_policy_is_not_touched_either(
    oracle_cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    from_case("02_two_pass_horizon")(oracle_cases, directory)
    before = contents(directory)
    assert main(["clean", str(directory), "--force", "--engine", "inline", "--json"]) == 1
    assert "policy unknown: pass -c cleanup.policy=" in capsys.readouterr().out
    assert contents(directory) == before


def test_force_skips_ratio_and_lag_but_never_the_policy(
    oracle_cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    from_case("02_two_pass_horizon")(oracle_cases, directory)
    before = contents(directory)
    words = ["clean", str(directory), "--engine", "inline", "--json", "--force"]
    assert main([*words, "-c", "cleanup.policy=delete"]) == 0
    assert "cleanup.policy is delete" in capsys.readouterr().out
    assert contents(directory) == before
    settings = ["-c", "cleanup.policy=compact", "-c", "min.cleanable.dirty.ratio=1"]
    assert main([*words, *settings]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "cleaned"


def test_to_leaves_the_source_as_it_was(
    oracle_cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, target = tmp_path / "data", tmp_path / "cleaned"
    from_case("02_two_pass_horizon")(oracle_cases, directory)
    before = contents(directory)
    words = [str(directory), "-c", "cleanup.policy=compact", "--engine", "inline", "--json"]
    assert main(["clean", *words, "--to", str(target)]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["records_written"] < line["records_read"]
    assert contents(directory) == before
    assert main(["clean", *words, "--to", str(target)]) == 2  # not into a used directory
    assert "--to" in capsys.readouterr().err
