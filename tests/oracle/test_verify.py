"""`lapse verify` on every pass of real Kafka's cleaner: all fine, its known holes are warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lapse.cli.main import main
from tests.oracle.compare import SETTINGS
from tests.oracle.oracle import read_case
from tests.oracle.test_clean import NAMES

# What Kafka does by its own rules and Lapse does not.
WARNINGS = {
    "07_log_append_time": {"L15"},
    "10_map_overflow": {"L1"},  # H-7
}


@pytest.mark.parametrize("name", NAMES)
def test_every_pass_of_kafkas_is_fine(
    name: str, oracle_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = read_case(oracle_cases / name)
    warned = set()
    for n, recorded in enumerate(case.passes):
        options = recorded.options
        words = ["verify", "--before", recorded.before, "--after", recorded.after, "--json"]
        words += ["--now", options["now"], "-c", "cleanup.policy=compact"]
        words += ["-c", f"delete.retention.ms={options['delete-retention-ms']}"]
        if "producer-expiration-ms" in options:
            words += ["-c", f"producer.id.expiration.ms={options['producer-expiration-ms']}"]
        code = main(list(map(str, words)))
        *findings, log = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        assert code == 0, f"pass {n}: {findings}"
        assert (log["reach"], log["reach_known"]) == (recorded.result["first_dirty_after"], True)
        warned |= {finding["rule"] for finding in findings}
    assert warned == WARNINGS.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_every_round_of_ours_is_fine(
    name: str, oracle_cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the same directories, by Lapse's own rules: they differ, and lose nothing either."""
    for n, recorded in enumerate(read_case(oracle_cases / name).passes):
        options, before, after = recorded.options, recorded.before.parent, tmp_path / str(n)
        settings = ["-c", "cleanup.policy=compact"]
        for option, setting in SETTINGS.items():
            if option in options:
                settings += ["-c", f"{setting}={options[option]}"]
        now = ["--now", str(options["now"])]
        words = ["clean", str(before), "--to", str(after), "--force", "--engine", "inline", *now]
        words += ["--first-dirty", str(options["first-dirty"])] if "first-dirty" in options else []
        words += ["--memory", str(options.get("dedupe-buffer-size", "1g")), *settings]
        assert main(words) == 0, capsys.readouterr()
        capsys.readouterr()
        words = ["verify", "--before", str(before), "--after", str(after), "--json"]
        code = main([*words, *now, *settings])
        told = capsys.readouterr().out
        assert code == 0, f"pass {n}: {told}"
        rules = {json.loads(text).get("rule") for text in told.splitlines()}
        assert rules <= {None, "P-1"}, f"pass {n}: {told}"  # neither L1 nor L15


def test_a_pass_taken_for_another_is_not_fine(
    oracle_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log after, beside one that was never its log before."""
    before = read_case(oracle_cases / "06_codecs_mix").passes[0].before
    after = read_case(oracle_cases / "13_out_of_order_ts_headers").passes[0].after
    assert main(["verify", "--before", str(before), "--after", str(after)]) == 1
    assert "NOT as it must be" in capsys.readouterr().out
