"""The view of keys on real logs: units, transactions, times, and logs that change meanwhile."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.fs import RealFs
from lapse.kernels.key_table import PARTS
from lapse.log.partition_log import PartitionLog
from lapse.log.sketch import encode_sketch
from lapse.log.start import KeptStart, write_start
from lapse.log.summary import read_summary, summary_path, write_summary
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.spark.scan.files import DataLost
from lapse.spark.views import keys as keys_view
from lapse.spark.views.key_table import KEY_BYTES
from lapse.spark.views.keys import key_batches, key_units, warm_up
from lapse.spark.views.spec import KEYS, ViewOptions
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW
from tests.support.log.logs import TP, append, config, data, end, open_log
from tests.support.spark.views.fleet import clean, make_fleet, rows
from tests.unit.cli.test_plan import many_keys

CLOCK = ManualClock(NOW)
Told = dict[bytes, tuple[Any, ...]]


def told(path: Path, *names: str, **more: Any) -> Told:
    names = names or ("offset", "records", "value_bytes", "is_tombstone")
    found = rows(KEYS, path, **more)
    by_key = {row["key"]: tuple(row[name] for name in names) for row in found}
    assert len(by_key) == len(found)
    return by_key


def write(log: PartitionLog, *records: NewRecord, **spec: Any) -> None:
    append(log, build_batch(records, BatchSpec(**spec)))


def test_a_log_before_and_after_its_round(tmp_path: Path) -> None:
    path = make_fleet(tmp_path / "data")
    warm_up()
    of_a = ("a",)
    size = len("v8-0" + "." * 20)
    before = told(path, topics=of_a)
    assert before == {b"k0": (36, 10, None, True)} | {
        b"k%d" % n: (32 + n, 9, size, False) for n in (1, 2, 3)
    }
    assert told(path, "record_bytes", topics=of_a)[b"k0"] == (9 * (size + 2) + 2,)
    clean(path, NOW + 1000)
    after = told(path, topics=of_a)
    assert after == {key: (row[0], 1, *row[2:]) for key, row in before.items()}
    assert {row["topic"] for row in rows(KEYS, path)} == {"a", "b"}


def test_both_times_and_what_is_not_a_key(tmp_path: Path) -> None:
    log = open_log(tmp_path / str(TP), config(cleanup_policy="delete"))
    write(log, NewRecord(b"c", b"", NOW), NewRecord(None, b"v", NOW), NewRecord(b"", b"v", -1))
    log.update_config(config(cleanup_policy="delete", message_timestamp_type="LogAppendTime"))
    write(log, NewRecord(b"t", b"v", NOW - 700))
    found = told(tmp_path, "timestamp", "create_time", "value_bytes")
    assert found == {
        b"c": (NOW, NOW, 0), b"": (None, None, 1), b"t": (NOW, NOW - 700, 1),
    }  # fmt: skip


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_valued_tombstones_count_but_where_nothing_compacts(tmp_path: Path, codec: Codec) -> None:
    """KIP-87, whatever `lapse.tombstone.values.enable` says now; also of an unknown policy."""
    log = open_log(tmp_path / str(TP), config(lapse_tombstone_values_enable="true"))
    write(log, NewRecord(b"k", b"why", NOW, tombstone=True), codec=codec)
    names = ("value_bytes", "is_tombstone")
    assert told(tmp_path, *names, settings=(("cleanup.policy", "compact"),)) == {b"k": (3, True)}
    assert told(tmp_path, *names) == {b"k": (3, True)}
    assert told(tmp_path, *names, settings=()) == {b"k": (3, True)}
    assert told(tmp_path, *names, settings=(("cleanup.policy", "delete"),)) == {b"k": (3, False)}


def test_transactions(tmp_path: Path) -> None:
    """Markers are no keys; only `committed` leaves out what was aborted, or is open."""
    log = open_log(tmp_path / str(TP))
    write(log, NewRecord(b"k0", b"before", NOW))
    data(log, 7, 0)
    end(log, 7, commit=False)
    data(log, 8, 0)
    end(log, 8, commit=True)
    data(log, 9, 0)
    assert told(tmp_path, "offset", "records") == {b"k0": (7, 4), b"k1": (8, 3)}
    committed = told(tmp_path, "offset", "records", committed=True)
    assert committed == {b"k0": (4, 2), b"k1": (5, 1)}


def test_deleted_records_are_not_told_though_they_are_in_the_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / str(TP))
    write(log, *(NewRecord(b"k%d" % n, b"v", NOW) for n in range(5)))
    write_start(RealFs(), tmp_path / str(TP), KeptStart(3))
    assert told(tmp_path, "offset") == {b"k3": (3,), b"k4": (4,)}


def test_what_comes_after_planning_is_not_in_the_answer(tmp_path: Path) -> None:
    log = open_log(tmp_path / str(TP))
    write(log, NewRecord(b"k", b"v", NOW))

    def later() -> None:
        write(log, NewRecord(b"k", None, NOW), NewRecord(b"x", b"v", NOW))

    assert told(tmp_path, "offset", meanwhile=later) == {b"k": (0,)}
    assert told(tmp_path, "offset") == {b"k": (1,), b"x": (2,)}


def test_a_round_between_planning_and_reading_changes_only_the_counts(tmp_path: Path) -> None:
    path = make_fleet(tmp_path / "data")
    before = told(path, "offset", topics=("a",))
    meanwhile = told(
        path, "offset", "records", topics=("a",),
        meanwhile=lambda: clean(path, NOW + 1000),
    )  # fmt: skip
    assert {key: row[:1] for key, row in meanwhile.items()} == before
    assert {records for _, records in meanwhile.values()} == {1}


def test_a_log_that_vanishes_while_it_is_read(tmp_path: Path) -> None:
    path = make_fleet(tmp_path / "data")
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)

    def vanish() -> None:
        shutil.rmtree(copy / "a-0")

    with pytest.raises(DataLost, match="there is no such log"):
        rows(KEYS, copy, meanwhile=vanish)
    shutil.copytree(path / "a-0", copy / "a-0")
    found = rows(KEYS, copy, meanwhile=vanish, fail_on_data_loss=False)
    assert {row["topic"] for row in found} == {"b"}


def test_the_time_is_that_of_the_last_record(tmp_path: Path) -> None:
    log = open_log(tmp_path / str(TP))
    times = ((b"a", NOW), (b"b", NOW), (b"a", NOW + 10), (b"n", -1))
    write(log, *(NewRecord(key, b"v", ms) for key, ms in times))
    assert told(tmp_path, "timestamp", "records") == {
        b"a": (NOW + 10, 2), b"b": (NOW, 1), b"n": (None, 1),
    }  # fmt: skip


def test_many_keys_are_many_units(tmp_path: Path) -> None:
    """By the sketches kept with summaries; together they cover all hashes, once."""
    path = make_fleet(tmp_path / "data")
    options = ViewOptions(KEYS, (str(path),), NOW, topics=("a",), memory_bytes=64 << 20)
    [unit] = key_units(options, CLOCK)
    [whole] = unit.keys
    assert (whole.part_from, whole.part_until) == (0, PARTS)
    file = summary_path(path / "a-0", 0)
    summary = read_summary(file)
    assert summary is not None
    write_summary(RealFs(), path / "a-0", summary, encode_sketch(many_keys()))
    units = key_units(replace(options, logs_per_unit=1), CLOCK)
    parts = [part for unit in units for part in unit.keys]
    assert len(units) == len(parts) > 4
    assert [parts[0].part_from, parts[-1].part_until] == [0, PARTS]
    assert [p.part_until for p in parts[:-1]] == [p.part_from for p in parts[1:]]
    assert len({(p.seed0, p.seed1) for p in parts}) == 1
    assert len(told(path, topics=("a",), memory_bytes=64 << 20)) == 4


def test_small_logs_share_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_fleet(tmp_path / "data")
    [unit] = key_units(ViewOptions(KEYS, (str(path),), NOW), CLOCK)
    assert unit.logs == ("a-0", "b-0")
    assert len({part.seed0 for part in unit.keys}) == 2
    assert len(key_units(ViewOptions(KEYS, (str(path),), NOW, logs_per_unit=1), CLOCK)) == 2
    monkeypatch.setattr(keys_view, "_UNIT_BYTES_MAX", 5_000)  # they have 6,000 together
    assert len(key_units(ViewOptions(KEYS, (str(path),), NOW), CLOCK)) == 2


def test_more_keys_than_memory_are_told_in_several_passes(tmp_path: Path) -> None:
    """One unit, since no sketch is kept: what does not fit is read again, nothing told twice."""
    log = open_log(tmp_path / str(TP), config(internal_segment_bytes=200_000))
    keys = [b"%07d" % n for n in range(6000)]
    for first in range(0, 6000, 1000):
        write(log, *(NewRecord(key, b"v", NOW) for key in keys[first : first + 1000]))
    write(log, *(NewRecord(key, None, NOW) for key in keys[:500]))
    least, passes = 256 << 10, 6000 * KEY_BYTES / (256 << 10)
    assert passes > 2
    [unit] = key_units(ViewOptions(KEYS, (str(tmp_path),), NOW, memory_bytes=least), CLOCK)
    assert len(list(key_batches(unit, CLOCK))) > passes
    found = told(tmp_path, "offset", "records", memory_bytes=least)
    assert found == {
        key: (6000 + n, 2) if n < 500 else (n, 1) for n, key in enumerate(keys)
    }  # fmt: skip


def test_an_empty_log_has_no_unit(tmp_path: Path) -> None:
    open_log(tmp_path / str(TP))
    assert key_units(ViewOptions(KEYS, (str(tmp_path),), NOW), CLOCK) == []
