"""`lapse clean --kafka-exact` against what real Kafka's cleaner made of the same directories.

Every pass of every recorded case is run through the command line, from the directory Kafka was
given, and all files Kafka left are compared (`compare`). `test_random.py` does the same with logs
that nobody has seen before.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from lapse.cli.main import main
from tests.oracle.compare import arguments, compare
from tests.oracle.oracle import HERE, Case, read_case

with tarfile.open(HERE / "cases.tar.xz") as _cases:
    NAMES = sorted({name.split("/")[1] for name in _cases.getnames() if "/" in name})


@pytest.mark.parametrize("name", NAMES)
def test_every_pass_comes_out_as_real_kafkas(
    name: str, oracle_cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case: Case = read_case(oracle_cases / name)
    for n, recorded in enumerate(case.passes):
        directory = tmp_path / str(n)
        shutil.copytree(recorded.before.parent, directory)
        (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
        assert main(arguments(directory, recorded.options)) == 0, capsys.readouterr()
        [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        expected = recorded.result
        assert line["first_dirty_before"] == expected["first_dirty_before"]
        assert line["first_dirty_after"] == expected["first_dirty_after"]
        assert line["records_read"] == expected["messages_read"]
        assert line["records_written"] == expected["messages_written"]
        assert line["map_entries"] == expected["map_entries"]
        interval = int(recorded.options.get("index-interval-bytes", 4096))
        differences = list(compare(directory / "t-0", recorded.after, interval))
        assert not differences, f"pass {n}: {differences}"
