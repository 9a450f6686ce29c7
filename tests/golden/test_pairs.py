"""What Kafka's cleaner left of a live topic is what `lapse clean --kafka-exact` leaves of it.

The broker's own cleaner ran between two recorded stages: at a moment that the delete horizons tell,
over what lay before the active segment. Run from the stage before, with that moment as `--now`.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.log.checkpoints import CLEANER, read_offsets
from tests.oracle.compare import INEXACT, different_lines, holds

TOPICS = [
    f"compact-{kind}" for kind in ("none", "gzip", "snappy", "lz4", "zstd", "horizon", "mixed")
]
STAGES = [("1-before", "2-clean1"), ("3-more", "4-clean2")]
LATER_MS = 1_900_000_000_000  # where no horizon tells the moment: past every one


def settings(topic: Path) -> dict[str, str]:
    """The topic's settings at the last stage."""
    lines = (topic / "topic-config.txt").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def moment_ms(after: Path, delete_retention_ms: int) -> int:
    """When Kafka's round began (H-2): its newest horizon, less what was added to it."""
    dump = (after / "dump.log.txt").read_text()
    horizons = [int(h) for h in re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", dump)]
    return max(horizons) - delete_retention_ms if horizons else LATER_MS


@pytest.mark.parametrize(("before", "after"), STAGES)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_live_brokers_round(
    goldens: Path, tmp_path: Path, topic: str, before: str, after: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source, kafkas = goldens / "golden" / topic / before, goldens / "golden" / topic / after
    partition = TopicPartition(topic, 0)
    directory = tmp_path / "data"
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("dump.*"))
    config = settings(source.parent)
    now_ms = moment_ms(kafkas, int(config["delete.retention.ms"]))
    words = ["clean", str(directory), "--kafka-exact", "--engine", "inline", "--json", "--force"]
    # Records are of 2023, and the live broker had not looked for idle producers yet.
    words += ["--now", str(now_ms), "-c", f"producer.id.expiration.ms={1 << 60}"]
    for name, value in {**config, "cleanup.policy": "compact"}.items():
        words += ["-c", f"{name}={value}"]
    assert main(words) == 0, capsys.readouterr()
    [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert line["outcome"] == "cleaned"
    assert line["first_dirty_after"] == read_offsets(kafkas / CLEANER)[partition]
    ours, theirs = directory / str(partition), kafkas / str(partition)
    names = [sorted(p.name for p in side.glob("*.log")) for side in (ours, theirs)]
    assert names[0] == names[1]
    for path in theirs.glob("*.log"):
        if holds(path, INEXACT):
            assert list(different_lines(ours / path.name, path)) == []
        else:
            assert (ours / path.name).read_bytes() == path.read_bytes(), path.name
