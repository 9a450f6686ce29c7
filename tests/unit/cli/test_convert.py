"""`lapse convert`: a copy that a real Kafka does not misread, and old formats as v2."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli import convert
from lapse.cli.main import main
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.export import copy_logs, export_logs
from lapse.log.incomplete import INCOMPLETE
from lapse.log.lock import LOCK
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import TopicRecord
from lapse.records.batch import Record, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.log.logs import TP, append, batch, config, env
from tests.support.log.old_logs import old_log, read_log

NOW = 1_700_000_000_000
PLAIN = TopicPartition("plain", 0)
TOPIC = config(cleanup_policy="compact", internal_segment_bytes=2000)


def valued(n: int, codec: Codec, offset: int) -> bytes:
    """Two live records and between them a tombstone that says who deleted."""
    return build_batch(
        [
            NewRecord(b"a%d" % n, b"live" * 9, NOW + n),
            NewRecord(b"b%d" % n, b"deleted by nobody", NOW + n, (), None, tombstone=True),
            NewRecord(b"c%d" % n, b"live too", NOW + n),
        ],
        BatchSpec(base_offset=offset, codec=codec, leader_epoch=0),
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two logs: one with such tombstones in some of its segments, one without."""
    directory = LogDirectory.open(tmp_path / "source", env())
    log = directory.create_log(TP, TOPIC)
    for n in range(40):
        if n % 10 == 5:
            log.append_raw(valued(n, list(Codec)[n // 10], log.log_end_offset))
        else:
            append(log, batch(records=3, timestamp=NOW + n, size=90))
    other = directory.create_log(PLAIN, TOPIC)
    append(other, batch(records=3))
    directory.close()
    return tmp_path / "source"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def records(folder: Path) -> list[Record]:
    found = []
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        found += [r for row in scan_batches(data, "t") for r in records_of(data, row, "t")]
    return found


def converted(source: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    assert main(["convert", "--to-kafka", str(source), "--to", str(target), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_only_flagged_values_are_gone(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(source)
    lines = converted(source, tmp_path / "target", capsys)
    assert files(source) == before
    ours, theirs = records(source / str(TP)), records(tmp_path / "target" / str(TP))
    assert sum(r.flagged for r in ours) == 4
    assert not any(r.flagged for r in theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.offset, a.timestamp, a.key, a.headers) == (
            b.offset,
            b.timestamp,
            b.key,
            b.headers,
        )
        assert b.value == (None if a.flagged else a.value)
    [line] = [line for line in lines if line["partition"] == str(TP)]
    assert line["tombstones_nulled"] == 4
    assert 0 < line["segments_rewritten"] < line["segments"]
    assert line["bytes_written"] == sum(
        p.stat().st_size for p in (tmp_path / "target" / str(TP)).glob("*.log")
    )


def test_where_nothing_compacts_a_flagged_value_is_data_and_stays(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By -c, by the metadata; a log that it does not know loses them, -c or no metadata at all."""
    ours = records(source / str(TP))
    values, nulled = [r.value for r in ours], [None if r.flagged else r.value for r in ours]
    store = SqliteStore(source / STORE, str)
    told: tuple[tuple[dict[str, str] | None, list[str], list[bytes | None]], ...] = (
        (None, [], nulled),
        (None, ["-c", "cleanup.policy=delete"], values),
        (None, ["-c", "cleanup.policy=compact,delete"], nulled),
        ({}, [], values),
        ({"cleanup.policy": "compact"}, [], nulled),
        ({"cleanup.policy": "delete"}, [], values),
    )
    record = TopicRecord(TP.topic, uuid4(), 1, {})
    for n, (overrides, more, expected) in enumerate(told):
        if overrides == {}:
            store.create_topics([record])
        elif overrides is not None:
            [before] = store.topics()
            store.change_topic(replace(record, overrides=overrides), before)
        target = tmp_path / f"{n}"
        assert main(["convert", "--to-kafka", str(source), "--to", str(target), *more]) == 0
        assert [r.value for r in records(target / str(TP))] == expected, (overrides, more)
        same = (source / str(TP)).glob("*.log")
        if expected == values:
            assert all((target / str(TP) / p.name).read_bytes() == p.read_bytes() for p in same)
    store.close()
    capsys.readouterr()


def test_nothing_of_ours_is_in_it_and_the_rest_is_byte_for_byte(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "lapse-rounds.jsonl").write_text("{}\n")
    converted(source, tmp_path / "target", capsys)
    before, after = files(source), files(tmp_path / "target")
    gone = set(before) - set(after)
    assert {name for name in gone if not re.search(r"/\.lapse/|^\.?lapse-|^\.lock$", name)} == set()
    assert not set(after) - set(before)
    changed = {name for name in after if after[name] != before[name]}
    assert all(name.startswith(f"{TP}/") for name in changed)
    assert {Path(name).suffix for name in changed} <= {".log", ".index", ".timeindex"}
    assert checkpoints.read_clean_shutdown(tmp_path / "target") is not None


def test_the_copy_opens_as_cleanly_as_the_source(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    converted(source, tmp_path / "target", capsys)
    logs = []
    for path in (source, tmp_path / "target"):
        directory = LogDirectory.open(path, env())
        log = directory.open_log(TP, TOPIC)
        logs.append((log.log_end_offset, len(log.segments), log.facts().producers))
        for stamp in range(40):
            found = log.state.offset_for_time(NOW + stamp)
            assert found is not None
            assert found.timestamp == NOW + stamp
        directory.close()
    assert logs[0] == logs[1]


def test_a_damaged_flagged_batch_is_a_finding_and_its_log_is_left_out(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(
        p
        for p in sorted((source / str(TP)).glob("*.log"))
        if b"deleted by nobody" in p.read_bytes()
    )
    data = bytearray(path.read_bytes())
    data[data.index(b"deleted by")] ^= 1
    path.write_bytes(data)
    assert main(["convert", "--to-kafka", str(source), "--to", str(tmp_path / "target")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "checksum does not match" in said
    assert not (tmp_path / "target" / str(TP)).exists()
    assert (tmp_path / "target" / "plain-0").is_dir()
    assert checkpoints.read_clean_shutdown(tmp_path / "target") is None


def test_what_is_asked_wrongly(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "target")
    for argv, code, words in (
        (["--to-kafka", str(source), "--to", str(source)], 2, "outside"),
        (["--to-kafka", str(source), "--to", str(source / "in")], 2, "outside"),
        (["--to-v2", str(source), "--to", str(source / "in")], 2, "outside"),
        (["--to-v2", str(source), "--to", str(tmp_path)], 2, "outside"),
        (["--to-kafka", str(tmp_path / "no"), "--to", target], 3, "no such directory"),
        (["--to-kafka", str(source), "--to", target, "--partition", "x"], 2, "TOPIC-N"),
        (["--to-kafka", str(source), "--to", target, "--partition", "x-1"], 3, "holds no log"),
        (["--to-kafka", str(source), "--to", target, "-c", "nonsense=1"], 2, "unknown setting"),
    ):
        assert main(["convert", *argv]) == code
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(source), "--to", target])
    assert "--to-kafka" in capsys.readouterr().err


def test_a_directory_in_use_is_left_alone(source: Path, tmp_path: Path) -> None:
    """By another process: its own lock would not stop one."""
    with (source / ".lock").open("ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = subprocess.run(
            [sys.executable, "-m", "lapse.cli.main", "convert", "--to-kafka", str(source),
             "--to", str(tmp_path / "target")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 3
    assert f"in use by process {os.getpid()}" in done.stderr
    assert not (tmp_path / "target").exists()


def test_old_formats_become_v2_in_place_or_in_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old_log(tmp_path / "old" / str(TP))
    LogDirectory.open(tmp_path / "old", env()).close()
    before, shown = files(tmp_path / "old"), read_log(tmp_path / "old" / str(TP))
    copied = ["convert", "--to-v2", str(tmp_path / "old"), "--to", str(tmp_path / "new"), "--json"]
    in_place = ["convert", "--to-v2", str(tmp_path / "old"), "--json"]
    for words, outcome, path in (
        (copied, "converted", "new"),
        (in_place, "converted", "old"),
        (in_place, "nothing of an old format", "old"),
    ):
        if words is copied:
            assert files(tmp_path / "old") == before
        assert main(words) == 0
        [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        assert (line["partition"], line["outcome"]) == (str(TP), outcome)
        assert read_log(tmp_path / path / str(TP)) == shown
        content = (tmp_path / path / str(TP) / f"{1000:020d}.log").read_bytes()
        assert set(scan_batches(content, "t")["magic"].tolist()) == {2}


def test_a_log_that_does_not_read_is_named_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old_log(tmp_path / "old" / str(TP))
    old_log(tmp_path / "old" / str(PLAIN))
    LogDirectory.open(tmp_path / "old", env()).close()
    path = tmp_path / "old" / str(TP) / f"{1000:020d}.log"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    checkpoints.write_offsets(
        RealFs(), tmp_path / "old" / checkpoints.RECOVERY_POINT, {TP: 1 << 40}
    )
    assert main(["convert", "--to-v2", str(tmp_path / "old"), "--json"]) == 1
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    outcomes = {line["partition"]: line["outcome"] for line in lines}
    assert outcomes[str(PLAIN)] == "converted"
    assert "checksum" in outcomes[str(TP)]
    assert path.read_bytes() == content


def test_a_copy_for_kafka_needs_a_place(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--to-kafka", str(source)]) == 2
    assert "--to DIR" in capsys.readouterr().err


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory of Kafka's with one log of old formats, closed well."""
    old_log(tmp_path / "old" / str(TP))
    directory = LogDirectory.open(tmp_path / "old", env())
    directory.open_log(TP, config())
    directory.close()
    return tmp_path / "old"


def test_stopped_while_it_copies_the_same_command_goes_on_and_nothing_else_does(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, shown = tmp_path / "new", read_log(old / str(TP))
    with pytest.raises(Crashed):
        copy_logs(old, new, [TP], CrashFs(RealFs(), 30))
    assert 0 < len(list((new / str(TP)).glob("*.log"))) < len(list((old / str(TP)).glob("*.log")))
    before, again = files(new), ["convert", "--to-v2", str(old), "--to", str(new)]
    for argv in (
        ["convert", "--to-v2", str(new)],
        ["convert", "--to-v2", str(new), "--to", str(tmp_path / "more")],
        ["convert", "--to-kafka", str(new), "--to", str(tmp_path / "more")],
    ):
        assert main(argv) == 3
        assert f"incomplete copy of {old}: let `lapse {' '.join(again)}`" in capsys.readouterr().err
    assert main(["convert", "--to-kafka", str(old), "--to", str(new)]) == 2
    assert (files(new), (tmp_path / "more").exists()) == (before, False)
    assert main(again) == 0
    assert read_log(new / str(TP)) == shown
    assert not (new / INCOMPLETE).exists()
    assert checkpoints.read_clean_shutdown(new) is not None
    assert main(again) == 2  # it is somebody's directory now
    assert read_log(new / str(TP)) == shown


def test_a_copy_for_kafka_that_was_cut_short_is_nobody_s_until_it_is_made_again(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka misses what it knows a directory by, and nothing of ours opens it."""
    kraft, target = source / "__cluster_metadata-0", tmp_path / "target"
    kraft.mkdir()
    (kraft / f"{0:020d}.log").write_bytes(batch())
    checkpoints.write_meta(RealFs(), source, {"version": "1"})
    fs = CrashFs(RealFs(), None)
    wanted = {TP: True, PLAIN: True}
    export_logs(source, tmp_path / "whole", wanted, fs, 4096, kraft.name)
    last = next(n for n in itertools.count(1) if died(source, target, n, kraft.name))
    assert 20 < last < fs.operations
    whole = files(tmp_path / "whole")
    assert {name for name in whole if "/" in name} <= files(target).keys()
    again = ["convert", "--to-kafka", str(source), "--to", str(target)]
    assert main(["convert", "--to-v2", str(target)]) == 3
    assert f"incomplete copy of {source}: let `lapse {' '.join(again)}`" in capsys.readouterr().err
    assert main(["convert", "--to-v2", str(source), "--to", str(target)]) == 2
    assert main(again) == 0
    assert files(target) == whole
    assert main(again) == 2  # it is somebody's directory now


def died(source: Path, target: Path, at: int, metadata: str) -> bool:
    """An export killed there; whether Kafka would take what is there for its own."""
    shutil.rmtree(target, ignore_errors=True)
    with pytest.raises(Crashed):
        export_logs(source, target, {TP: True, PLAIN: True}, CrashFs(RealFs(), at), 4096, metadata)
    if target.exists() and set(files(target)) - {INCOMPLETE + ".tmp", LOCK}:
        assert (target / INCOMPLETE).exists()
    return (target / checkpoints.META_PROPERTIES).exists()


def test_a_copy_has_kafka_s_metadata_log_unless_only_some_are_wanted(
    old: Path, tmp_path: Path
) -> None:
    kraft = old / "__cluster_metadata-0"
    kraft.mkdir()
    (kraft / f"{0:020d}.log").write_bytes(batch())
    (kraft / f"{9:020d}-{1:010d}.checkpoint").write_bytes(b"snapshot")
    assert main(["convert", "--to-v2", str(old), "--to", str(tmp_path / "new")]) == 0
    assert files(tmp_path / "new" / kraft.name) == files(kraft)
    assert checkpoints.read_clean_shutdown(tmp_path / "new") is not None
    some = ["convert", "--to-v2", str(old), "--to", str(tmp_path / "some"), "--partition", str(TP)]
    assert main(some) == 0
    assert not (tmp_path / "some" / kraft.name).exists()


@pytest.mark.parametrize("to", ["--to-v2", "--to-kafka"])
def test_nobody_can_have_the_source_while_it_is_copied(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    taken = [sys.executable, "-c", code, str(old / ".lock")]
    name, asked = {"--to-v2": "copy_logs", "--to-kafka": "export_logs"}[to], []
    copying = getattr(convert, name)

    def asking(*args: object) -> object:
        asked.append(subprocess.run(taken, capture_output=True, check=False).returncode)
        return copying(*args)

    monkeypatch.setattr(convert, name, asking)
    assert main(["convert", to, str(old), "--to", str(tmp_path / "new")]) == 0
    assert asked == [1]
    assert subprocess.run(taken, check=False).returncode == 0


def test_a_source_that_cannot_be_locked_is_copied(old: Path, tmp_path: Path) -> None:
    (old / ".lock").unlink()
    (old / ".lock").symlink_to(tmp_path / "no" / "such")
    shown = read_log(old / str(TP))
    assert main(["convert", "--to-v2", str(old), "--to", str(tmp_path / "new")]) == 0
    assert read_log(tmp_path / "new" / str(TP)) == shown


def test_a_copy_that_somebody_else_makes_is_left_to_them(old: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with (tmp_path / "new" / ".lock").open("ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = subprocess.run(
            [sys.executable, "-m", "lapse.cli.main", "convert", "--to-v2", str(old),
             "--to", str(tmp_path / "new")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 3
    assert f"process {os.getpid()} holds" in done.stderr
    assert set(files(tmp_path / "new")) == {".lock"}
