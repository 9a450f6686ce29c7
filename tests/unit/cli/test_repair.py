"""`lapse repair` over real directories: found as it is, decided, and served again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from lapse.base.errors import MissingData
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.lifecycle.round.bad import store
from lapse.log.directory import LogDirectory
from lapse.log.facts import BadRange
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.metadata import sqlite
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound, config, env
from tests.support.metadata.store_contract import record

SMALL = config(internal_segment_bytes=400)
Told = list[dict[str, object]]


@pytest.fixture(params=[True, False], ids=["clean", "killed"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> PartitionLog:
    """A log of six segments, all synced."""
    directory = LogDirectory.open(tmp_path, env())
    made = directory.create_log(TP, SMALL)
    while len(made.segments) < 6:
        append(made, batch())
    made.flush()
    directory.checkpoint()
    directory.close(clean=request.param)
    return made


def state(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def repair(
    log: PartitionLog, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, Told]:
    capsys.readouterr()
    code = main(["repair", str(log.dir.parent), "--json", *options])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def append_synced(log: PartitionLog) -> None:
    """A batch more in the last segment."""
    directory = LogDirectory.open(log.dir.parent, env())
    again = directory.open_log(TP, SMALL)
    append(again, batch())
    again.flush(force=True)
    directory.checkpoint()
    directory.close()


def reopened(log: PartitionLog) -> tuple[int, dict[int, bytes]]:
    """The log end, and what is served; one more append comes behind it, clean or not."""
    directory = LogDirectory.open(log.dir.parent, env())
    again = directory.open_log(TP, SMALL)
    check_sound(again)
    found = again.log_end_offset, batches_of(again)
    assert append(again, batch()).base_offset == found[0]
    directory.close()
    directory = LogDirectory.open(log.dir.parent, env())
    assert directory.open_log(TP, SMALL).log_end_offset == found[0] + 3
    directory.close()
    return found


def held(log: PartitionLog) -> None:
    directory = LogDirectory.open(log.dir.parent, env())
    with pytest.raises(MissingData):
        directory.open_log(TP, SMALL)
    directory.close(clean=False)


def test_nothing_is_wrong(log: PartitionLog, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(log.dir.parent)
    assert repair(log, capsys) == (0, [])
    assert repair(log, capsys, "--read", "--partition", str(TP)) == (0, [])
    assert main(["repair", str(log.dir.parent)]) == 0
    assert capsys.readouterr().out == "nothing is missing\n"
    assert state(log.dir.parent) == before


@pytest.mark.parametrize("n", [0, 2, 5])
def test_a_hole(log: PartitionLog, capsys: pytest.CaptureFixture[str], n: int) -> None:
    """Looking changes nothing, another choice neither; accepted, no offset is given twice."""
    before = batches_of(log)
    gone, end = log.segments[n], log.log_end_offset
    gone.path().unlink()
    files = state(log.dir.parent)
    for options in ((), ("--accept-hole", "--dry-run"), ("--partition", str(TP), "--read")):
        code, [told] = repair(log, capsys, *options)
        assert code == 1
        assert (told["partition"], told["choice"]) == (str(TP), "accept-hole")
        assert (told["first_offset"], told["end_offset"]) == (gone.base_offset, gone.end_offset)
        assert told["offline"]
        assert told["outcome"] is None
        assert state(log.dir.parent) == files
    assert repair(log, capsys, "--cut", "--let-go", "--accept-empty")[0] == 1
    held(log)
    code, [told] = repair(log, capsys, "--accept-hole")
    assert (code, told["error"]) == (0, None)
    assert f"without offsets {gone.base_offset} to {gone.end_offset - 1}" in str(told["outcome"])
    left = {o: b for o, b in before.items() if not gone.base_offset <= o < gone.end_offset}
    assert reopened(log) == (end, left)
    assert repair(log, capsys) == (0, [])


def test_a_segment_that_is_shorter(log: PartitionLog, capsys: pytest.CaptureFixture[str]) -> None:
    before, segment = batches_of(log), log.segments[2]
    os.truncate(segment.path(), len(before[segment.base_offset]))
    code, [told] = repair(log, capsys, "--accept-hole")
    assert code == 0
    assert told["first_offset"] == segment.base_offset + 3
    lost = range(segment.base_offset + 3, segment.end_offset)
    assert reopened(log) == (log.log_end_offset, {o: b for o, b in before.items() if o not in lost})


@pytest.mark.parametrize("emptied", [True, False])
def test_a_folder(log: PartitionLog, capsys: pytest.CaptureFixture[str], emptied: bool) -> None:
    shutil.rmtree(log.dir)
    if emptied:
        log.dir.mkdir()
    code, [told] = repair(log, capsys)
    assert (code, told["choice"], told["end_offset"]) == (1, "accept-empty", log.log_end_offset)
    code, [told] = repair(log, capsys, "--accept-empty")
    assert code == 0
    assert told["outcome"] == f"the log is empty, new records begin at {log.log_end_offset}"
    assert reopened(log) == (log.log_end_offset, {})


def test_zeros_in_the_last_segment(log: PartitionLog, capsys: pytest.CaptureFixture[str]) -> None:
    """What is cut off is kept, zeros alone are not; what comes goes on where the log had ended."""
    path, before, end = log.segments[5].path(), batches_of(log), log.log_end_offset
    append_synced(log)
    data = bytearray(path.read_bytes())
    first = len(data) - len(batch())
    data[first : first + 30] = bytes(30)
    path.write_bytes(data)
    held(log)
    code, [told] = repair(log, capsys)
    assert (code, told["choice"], told["offline"]) == (1, "cut", True)
    assert (told["first_offset"], told["end_offset"]) == (end, end + 3)
    code, [told] = repair(log, capsys, "--cut")
    assert code == 0
    kept = str(told["outcome"]).split("kept as ")[1]
    assert Path(kept).read_bytes() == data[first:]
    assert reopened(log) == (end + 3, before)


def test_a_place_that_does_not_read(log: PartitionLog, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sealed segment it holds rounds back (L10); let go, all that reads is left."""
    segment, before = log.segments[2], batches_of(log)
    data = bytearray(segment.path().read_bytes())
    data[len(batch()) // 2] ^= 1
    segment.path().write_bytes(data)
    bad = BadRange(segment.base_offset, segment.base_offset, 0, "checksum", NOW, 1, NOW)
    store(RealFs(), log.dir, bad)
    code, [told] = repair(log, capsys)
    assert (code, told["choice"], told["offline"]) == (1, "let-go", False)
    assert told["first_offset"] == segment.base_offset
    code, [told] = repair(log, capsys, "--let-go")
    assert (code, told["error"]) == (0, None)
    kept = str(told["outcome"]).split("kept as ")[1]
    assert Path(kept).read_bytes() == data
    left = {o: b for o, b in before.items() if o != segment.base_offset}
    assert reopened(log) == (log.log_end_offset, left)
    assert repair(log, capsys, "--read") == (0, [])
    directory = LogDirectory.open(log.dir.parent, env())
    assert directory.open_log(TP, SMALL).facts().bad is None
    directory.close()


def test_reading_all_finds_what_nobody_has_met(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment_path(log.dir, log.segments[1].base_offset, LOG)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert repair(log, capsys) == (0, [])
    code, [told] = repair(log, capsys, "--read")
    assert (code, told["choice"]) == (1, "let-go")


def test_a_directory_that_is_served(log: PartitionLog, capsys: pytest.CaptureFixture[str]) -> None:
    log.segments[2].path().unlink()
    directory = LogDirectory.open(log.dir.parent, env())
    assert main(["repair", str(log.dir.parent), "--accept-hole"]) == 3
    assert "in use by this process" in capsys.readouterr().err
    directory.close(clean=False)


def test_what_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(tmp_path / "nowhere")]) == 3
    assert "no such directory" in capsys.readouterr().err
    assert main(["repair", str(tmp_path), "--partition", "x"]) == 2


@pytest.mark.parametrize("choices", [(), ("--accept-hole",), ("--accept-metadata",)])
def test_a_log_that_is_neither_there_nor_remembered_is_refused(
    log: PartitionLog, capsys: pytest.CaptureFixture[str], choices: tuple[str, ...]
) -> None:
    """Who mistypes a name is not told that nothing is missing of it."""
    words = ["repair", str(log.dir.parent), "--partition", str(TP), "--partition", "typo-0"]
    capsys.readouterr()
    assert main([*words, *choices]) == 3
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"lapse: {log.dir.parent}: holds no log typo-0\n")


def test_a_log_that_is_only_remembered_may_be_named(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(log.dir)
    code, [told] = repair(log, capsys, "--partition", str(TP))
    assert (code, told["choice"]) == (1, "accept-empty")


def test_damaged_metadata_is_named_and_accepted_by_a_person_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / sqlite.STORE
    closing_one = sqlite.SqliteStore(store, lambda: "cluster")
    closing_one.create_topics([record("t", 1)])
    closing_one.close()
    with contextlib.closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE topics SET state = 1")
    before = store.read_bytes()
    assert main(["repair", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "topics: not as they were stored" in said
    assert "--accept-metadata" in said
    assert main(["repair", str(tmp_path), "--accept-metadata", "--dry-run"]) == 1
    assert store.read_bytes() == before
    capsys.readouterr()
    assert main(["repair", str(tmp_path), "--accept-metadata", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "accepted as they are"
    assert main(["repair", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing is missing\n"


def test_metadata_that_cannot_be_read_at_all_keep_no_log_from_being_repaired(
    tmp_path: Path, log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / sqlite.STORE).write_bytes(b"no database" * 100)
    segment_path(log.dir, log.segments[2].base_offset, LOG).unlink()
    assert main(["repair", str(tmp_path), "--accept-hole", "--accept-metadata", "--json"]) == 1
    of_metadata, of_log = map(json.loads, capsys.readouterr().out.splitlines())
    assert "put the file back from a copy" in of_metadata["why"]
    assert (of_metadata["choice"], of_metadata["outcome"]) == ("", None)
    assert of_log["outcome"] is not None


def test_what_another_finding_has_hidden_is_decided_too(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing disk lost a sealed segment, and synced bytes of the last one."""
    append_synced(log)
    log.segments[2].path().unlink()
    path = log.segments[5].path()
    data = bytearray(path.read_bytes())
    first = len(data) - len(batch())
    data[first : first + 30] = bytes(30)
    path.write_bytes(data)
    code, told = repair(log, capsys, "--accept-hole")
    assert code == 1
    assert [(one["choice"], bool(one["outcome"])) for one in told] == [
        ("accept-hole", True), ("cut", False),
    ]  # fmt: skip
    code, told = repair(log, capsys, "--accept-hole", "--cut")
    assert (code, [one["choice"] for one in told]) == (0, ["cut"])
    assert repair(log, capsys) == (0, [])
