"""A segment opened for a round: what of it stays in memory, and what of it is refused."""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.kernels.scan import SMALL
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round import source as sources
from lapse.lifecycle.round.offset_map import build_map
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.round.source import (
    BadSegment,
    Inflater,
    SourceSegment,
    Workplace,
    open_source,
)
from lapse.records import batch
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import data, planned
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, plan_of
from tests.unit.lifecycle.round.test_mapped_forget import file_pages_kib

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only where files are mapped")
def test_a_sparing_one_gives_back_what_its_headers_have_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_PIECE_BYTES", MIB)
    clock = ManualClock(NOW)
    config = compacted(internal_segment_bytes=64 * MIB, segment_index_bytes=MIB)
    records = {"t": [(f"k{n}", "v" * 40 * KIB) for n in range(400)]}
    configs = make_logs(tmp_path, records, config, clock)
    with DirectoryOwner(tmp_path, configs, RealFs(), clock) as owner:
        plan = plan_of(owner.logs()[0], "r", NOW)
    grown, rows = [], []
    for sparing in (True, False):
        before = file_pages_kib()
        source = open_source(plan, plan.segments[0], None, sparing=sparing)
        grown.append(file_pages_kib() - before)
        rows.append(source.rows.tolist())
        source.close()
    assert grown[0] < 4 * 1024 < 12 * 1024 < grown[1]
    assert rows[0] == rows[1] != []


def opened(plan: RoundPlan) -> SourceSegment:
    return open_source(plan, plan.segments[0], Workplace(RealFs(), Path(plan.dir)))


def spot_of(plan: RoundPlan) -> BadSpot:
    with pytest.raises(BadSegment) as refused:
        opened(plan)
    return refused.value.spot


def old(first: int, n: int, codec: Codec = Codec.NONE, magic: int = 1) -> bytes:
    messages = [Message(first + k, NOW, b"k%d" % k, b"value") for k in range(n)]
    return build_messages(messages, MessageSpec(magic, codec))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_damage_in_an_old_format_is_named_and_no_image_is_made(
    tmp_path: Path, codec: Codec, keeps: bool
) -> None:
    """In v2 it would get a checksum that is right."""
    sound = old(0, 2)
    bad = bytearray(old(2, 1, codec))
    bad[-1] ^= 1
    plan = planned(tmp_path, [(0, sound + bad + old(3, 1))], 4, keeps_old_formats=keeps)
    assert spot_of(plan) == BadSpot(0, 2, len(sound), "checksum does not match")
    assert not list(tmp_path.glob("*image*"))


@pytest.mark.parametrize("bad", [None, 0, 2, 3])
@pytest.mark.parametrize("value_bytes", [(10,), (3000,), (10, 3000)])
def test_small_batches_are_checked_with_their_headers_and_others_where_they_are_read(
    tmp_path: Path, value_bytes: tuple[int, ...], bad: int | None
) -> None:
    """Either way the same place is named."""
    sizes = (value_bytes * 4)[:4]
    batches = [bytearray(data(n, (b"k%d" % n, b"v" * size))) for n, size in enumerate(sizes)]
    if bad is not None:
        batches[bad][-2] ^= 1
    plan = planned(tmp_path, [(0, b"".join(batches))], 4)
    segment = opened(plan)
    seen = 4 if bad is None or sizes[bad] > SMALL else bad
    assert segment.checked.tolist() == [n < seen and sizes[n] <= SMALL for n in range(4)]
    segment.close()
    if bad is None:
        build_map(plan, lambda _: None).close()
        return
    with pytest.raises(BadSegment) as refused:
        build_map(plan, lambda _: None)
    at = sum(map(len, batches[:bad]))
    assert refused.value.spot == BadSpot(0, bad, at, "checksum does not match")


def test_nothing_of_an_image_is_known_to_be_right(tmp_path: Path) -> None:
    """It is a file of its own, and another one than what was checked."""
    segment = opened(planned(tmp_path, [(0, old(0, 2) + old(2, 1))], 3))
    assert len(segment.checked) > 0
    assert not segment.checked.any()
    segment.close()


def test_a_wrapper_that_reaches_beyond_itself_is_told_with_what_lies_before_it(
    tmp_path: Path,
) -> None:
    """Rounds go on below it (L10)."""
    sound = [old(0, 3, Codec.GZIP, magic=0), old(3, 2, Codec.GZIP, magic=0)]
    beyond = bytearray(old(5, 4, Codec.GZIP, magic=0))
    struct.pack_into(">q", beyond, 0, 7)  # its last message has 8
    plan = planned(tmp_path, [(0, b"".join(sound) + beyond)], 9)
    at = sum(map(len, sound))
    assert spot_of(plan) == BadSpot(0, 5, at, "its messages reach offset 8, beyond its own")
    plan = planned(tmp_path, [(5, bytes(beyond))], 9)
    assert spot_of(plan).first_offset == 5


def test_a_bit_a_record_is_all_that_is_held_of_it(tmp_path: Path) -> None:
    content = data(0, *((b"%d" % n, b"v") for n in range(800)))
    segment = opened(planned(tmp_path, [(0, content)], 800))
    for bits in (segment.superseded, segment.keyless):
        assert 100 <= len(bits) <= 110
    segment.close()


def test_a_segment_cut_while_its_headers_are_scanned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros that are read for what was there may pass for the end of it."""
    plan = planned(tmp_path, [(0, data(0, (b"a", b"1")))], 1)
    path = tmp_path / f"{0:020d}.log"
    whole = path.stat().st_size
    scan = batch.scan_small_checked

    def cut(*args: object, **more: object) -> object:
        found = scan(*args, **more)  # type: ignore[arg-type]
        os.truncate(path, whole - 1)
        return found

    monkeypatch.setattr(sources, "scan_small_checked", cut)
    assert spot_of(plan) == BadSpot(
        0, 0, whole - 1, f"the segment is shorter than planned ({whole} bytes)"
    )


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_no_frame_of_kafkas_is_inflated_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    records = [NewRecord(b"k%d" % n, b"v" * 290, NOW) for n in range(3)]
    content = b"".join(build_batch(records, BatchSpec(3 * n, codec)) for n in range(10))
    segment = opened(planned(tmp_path, [(0, content)], 30))
    monkeypatch.delattr(SourceSegment, "plain")
    [piece] = Inflater(segment).pieces(0, 10, np.ones(10, np.bool_))
    assert (piece.lo, piece.hi, int((piece.ends - piece.starts).min()) > 900) == (0, 10, True)
    segment.close()


def test_batches_of_like_size_are_inflated_into_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time: memory for each of them would be asked for and touched anew."""
    spec = BatchSpec(0, Codec.ZSTD)
    record = NewRecord(b"k", b"v" * 290, NOW)
    content = b"".join(build_batch([record], replace(spec, base_offset=n)) for n in range(10))
    segment = opened(planned(tmp_path, [(0, content)], 10))
    monkeypatch.setattr(sources, "SCRATCH_BYTES", 1000)
    found, places = [], set()
    for piece in Inflater(segment).pieces(0, 10, np.ones(10, np.bool_)):
        found.append((piece.lo, piece.hi))
        places.add(piece.data.ctypes.data)
        assert not piece.data.flags.writeable, "the kernels know one type of array"
        for b in range(piece.lo, piece.hi):
            plain = piece.data[piece.starts[b] : piece.ends[b]].tobytes()
            assert plain == segment.plain(b, np.empty(0, np.uint8)).tobytes()
    assert found == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert len(places) == 1
    segment.close()
