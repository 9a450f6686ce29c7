"""Targets made of a whole partition directory, several of its files harmed.

It is looked at, dumped, opened, read, searched, appended to, cleaned and opened again. Every
refusal is typed, and no record is lost that was sound and lay before the first harm of its log.
"""

from __future__ import annotations

import contextlib
import io
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, KafkaError, LapseError
from lapse.base.fs import RealFs
from lapse.cli import dump
from lapse.cli.main import build_parser
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.commit import CommitEnv, finish_commit
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.mapped import MappedFile
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.round.summarise import adopt, requests_of
from lapse.log.markers import parse_marker
from lapse.log.partition_log import PartitionLog
from lapse.log.reader import aborted_transactions, read_facts
from lapse.log.segment import base_offset_of
from lapse.records.batch import records_of, scan_batches, scan_prefix
from lapse.records.builder import NewRecord, build_batch
from lapse.testing.clock import ManualClock
from tests.fuzz import corpus, mutate
from tests.fuzz.fences import fenced
from tests.fuzz.target import WHERE, Files, Target, require, told
from tests.support.lifecycle.rounds import commit

FS = RealFs()
_BYTES_AT_ONCE = 8 << 20
_TIMES = (corpus.NOW, corpus.NOW + 700, 0, (1 << 63) - 1, 1_700_000_003_000)


# --- making -----------------------------------------------------------------------------------


def make(rng: random.Random) -> Files:
    """One to four harms; mostly to a log, for that is what matters."""
    ours = rng.random() < 0.7
    files = dict(rng.choice(corpus.built_directories() if ours else corpus.directories()))
    for _ in range(rng.choice((1, 1, 2, 4))):
        _harm(rng, files)
    return files


def _harm(rng: random.Random, files: dict[str, bytes]) -> None:
    logs = [name for name in files if name.endswith(".log")]
    name = rng.choice(logs) if logs and rng.random() < 0.6 else rng.choice(sorted(files))
    kind = rng.random()
    if kind < 0.7:
        others = [files[other] for other in files if Path(other).suffix == Path(name).suffix]
        change = mutate.batches if name.endswith(".log") else mutate.blindly
        files[name] = change(rng, files[name], others)
    elif kind < 0.8:
        files[name] = rng.choice((mutate.truncate, mutate.zero_tail))(rng, files[name])
    elif kind < 0.86:
        if len(files) > 1:
            del files[name]
    elif kind < 0.92:  # swapped with one of its kind
        alike = sorted(other for other in files if Path(other).suffix == Path(name).suffix)
        other = rng.choice(alike)
        files[name], files[other] = files[other], files[name]
    elif kind < 0.96:  # what a crash, or somebody, left lying there
        suffix = rng.choice((".deleted", ".cleaned", ".swap", ".tmp", "-delete", ".1"))
        files[name + suffix] = files[name]
    else:
        stem = rng.choice(("00000000000000000007", "00000000000000005000", "99999999999999999999"))
        files[stem + Path(name).suffix] = files[name]


# --- what must survive ------------------------------------------------------------------------


@dataclass(frozen=True)
class Sound:
    """Sound batches by base offset, and whether the log was sound to its end."""

    batches: dict[int, bytes]
    whole: bool


def sound_part(files: Files) -> Sound:
    """What lies before the first harm: batches that parse, with right checksums, in order."""
    found: dict[int, bytes] = {}
    logs = {base_offset_of(name): name for name in files if _is_log(name)}
    bases = sorted(base for base in logs if base is not None)
    for n, base in enumerate(bases):
        after = min([*bases[n + 1 :][:1], base + (1 << 31)])  # an index's offsets have 32 bits
        data = files[logs[base]]
        rows, _, reason = scan_prefix(data)
        end = base
        for row in rows:
            last = int(row["last_offset"])
            if int(row["base_offset"]) < end or last < int(row["base_offset"]) or last >= after:
                return Sound(found, whole=False)
            start = int(row["position"])
            batch = data[start : start + int(row["size"])]
            if not _tells(row, batch):
                return Sound(found, whole=False)
            found[int(row["base_offset"])] = batch
            end = last + 1
        if reason is not None:
            return Sound(found, whole=False)
    return Sound(found, whole=True)


def _tells(row: np.void, batch: bytes) -> bool:
    """Whether a control batch's record can be read, without which producers cannot be told."""
    if row["magic"] < 2 or not int(row["attributes"]) & CONTROL or not row["count"]:
        return True
    try:
        parse_marker(batch, WHERE)
    except CorruptData:
        return False
    return True


def _is_log(name: str) -> bool:
    return name.endswith(".log") and "/" not in name and base_offset_of(name) is not None


def _in_the_middle(files: Files) -> bool:
    """A swap is under way or was interrupted: other rules say which files count."""
    return any(name.endswith((".swap", ".cleaned")) for name in files)


# --- checking ---------------------------------------------------------------------------------


def check(files: Files, rng: random.Random, folder: Path) -> None:
    """Everything one can do with a directory."""
    home = folder / WHERE
    home.mkdir()
    corpus.write_files(home, files)
    before = corpus.read_files(home)
    _look(home, rng)
    assert corpus.read_files(home) == before, "looking has changed something"
    clean = rng.random() < 0.4
    expected = Sound({}, whole=False) if _in_the_middle(files) else sound_part(files)
    clock = ManualClock(corpus.NOW)
    log = _opened(home, rng, clock, clean=clean, end=max(expected.batches, default=0))
    if log is None:
        return
    everything = _read_all(log, strict=not clean)
    for base_offset, batch in expected.batches.items():
        if log.log_start_offset <= base_offset < log.log_end_offset:
            got = log.read(base_offset, 1).read()
            if got != batch and clean:  # no checksum covers offsets: others may claim these too
                rows, *_ = scan_prefix(got)
                got = batch if len(rows) and rows["last_offset"][0] >= base_offset else b""
            assert got == batch, f"lost the sound batch at {base_offset} (clean={clean})"
    if not clean and expected.batches:
        assert log.log_end_offset > max(expected.batches)
    _search(log, rng)
    if _appended(log, strict=not clean):
        _read_all(log, strict=not clean)
    _round(log, clock, everything)
    end, start = log.log_end_offset, log.log_start_offset
    left = _read_all(log, strict=not clean)
    told(log.close, str(home))
    again = corpus.open_log(home, clean_shutdown=True, log_start_offset=start, clock=clock)
    assert again.log_end_offset == end
    assert clean or _read_all(again, strict=True) == left
    again.close(clean=False)


def _look(home: Path, rng: random.Random) -> None:
    """As `lapse plan`, `lapse dump` and an offline reader do."""
    clock = ManualClock(corpus.NOW)
    told_typed(lambda: read_facts(home, corpus.TP, clock=clock), home)
    told_typed(lambda: aborted_transactions(home, 0, 1 << 40, clock), home)
    words = ["dump", str(home), "--decode", rng.choice(("auto", "auto", "offsets", "transactions"))]
    for option, share in {"--json": 0.7, "--no-records": 0.2}.items():
        words += [option] if rng.random() < share else []
    if rng.random() < 0.1:
        words += ["--state"]
    elif rng.random() < 0.2:
        words += ["--text", "--from-offset", str(rng.randrange(100))]
    asked = build_parser("dump").parse_args(words)
    shown, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        code = told_typed(lambda: dump.run(asked), home)
    assert code in {0, 1, None}
    assert (code == 1) == bool(said.getvalue()) or code is None
    assert all(str(home) in line for line in said.getvalue().splitlines())


def told_typed(call: object, home: Path) -> object:
    """Any typed refusal that names the directory."""
    assert callable(call)
    try:
        return call()
    except LapseError as e:
        require(str(home) in str(e) or WHERE in str(e), repr(e))
        return None


def _opened(
    home: Path, rng: random.Random, clock: ManualClock, *, clean: bool, end: int
) -> PartitionLog | None:
    recovery_point = rng.choice((0, 0, end // 2, end)) if clean else 0
    log = told_typed(
        lambda: corpus.open_log(
            home, clean_shutdown=clean, recovery_point=recovery_point, clock=clock
        ),
        home,
    )
    assert log is None or isinstance(log, PartitionLog)
    return log


def _read_all(log: PartitionLog, *, strict: bool) -> dict[int, bytes]:
    """Batches by base offset, read to the end as a follower does.

    Not `strict`: files were trusted that are not sound, and what is in them is the reader's to
    find out; then reading ends at what does not parse.
    """
    found: dict[int, bytes] = {}
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        data = told(lambda offset=offset: log.read(offset, _BYTES_AT_ONCE).read())
        if not data:
            break
        rows, _, reason = scan_prefix(data)
        assert not strict or (reason is None and len(rows))
        if not len(rows):
            break
        for row in rows:
            start, last = int(row["position"]), int(row["last_offset"])
            if last < offset:
                assert not strict, "offsets go back"
                return found
            found[int(row["base_offset"])] = data[start : start + int(row["size"])]
            offset = last + 1
    return found


def _search(log: PartitionLog, rng: random.Random) -> None:
    home = str(log.dir)
    for time in rng.sample(_TIMES, 3):
        found = told(lambda time=time: log.state.offset_for_time(time), home)
        assert found is None or found.timestamp >= time
    told(log.state.greatest_timestamp, home)
    told(lambda: log.aborted_transactions(0, log.log_end_offset), home)
    for _ in range(3):
        offset = rng.randrange(log.log_start_offset, log.log_end_offset + 1)
        told(lambda offset=offset: log.read(offset, 100, rng.choice((None, offset + 3))), home)


def _appended(log: PartitionLog, *, strict: bool) -> bool:
    """It takes a batch, and gives it back unless that lies behind a harm nobody looked for."""
    data = build_batch([NewRecord(b"after", b"all", corpus.NOW)])
    try:
        corpus.append(log, data)
    except KafkaError as e:
        require(str(log.partition) in str(e), repr(e))
        return False
    if strict:
        [row] = scan_batches(log.read(log.log_end_offset - 1, 1).read(), WHERE)
        assert row["last_offset"] == log.log_end_offset - 1
    told(lambda: log.roll(corpus.NOW), str(log.dir))
    return True


# --- a round ----------------------------------------------------------------------------------


def _round(log: PartitionLog, clock: ManualClock, everything: dict[int, bytes]) -> None:
    """A failed round changes nothing; one that is done keeps the last value of every key."""
    engine = InlineEngine(FS, clock)
    for receipt in receipts_of(engine.summarise(requests_of([log.facts()], records=True))):
        adopt(log, receipt)
    clock.advance(1000)
    info = told(lambda: info_of(log.facts(), log.config, clock.now_ms()), str(log.dir))
    if info is None:
        return
    decision = decide(info, clock.now_ms(), RoundOptions(force=True))
    if not decision.due:
        return
    plan = make_plan(decision, "round-1", Rules.LAPSE, MapMemory(1 << 20))
    lying = max(everything, default=0) >= log.log_end_offset  # trusted, and not what it was
    before = None if lying else _values(everything)
    [receipt] = receipts_of(engine.submit([plan]))
    assert receipt.error is None or WHERE in receipt.error
    env = CommitEnv(FS, clock, lambda _: None)
    told(lambda: finish_commit(log.dir, env), str(log.dir))
    result = commit(log, receipt, env)
    assert result.error is None or WHERE in result.error
    if before is None or result.error is not None:
        return
    left = _read_all(log, strict=False)
    after = _values(left)
    if after is None:  # a reader may get now to where a harm kept it from before
        assert max(left) > max(everything)
        return
    for key, (offset, value) in before.items():
        if value is not None and key not in after:
            raise AssertionError(f"the round has lost {key!r} of offset {offset}")
        assert value is None or after[key][0] >= offset


def _values(batches: dict[int, bytes]) -> dict[bytes, tuple[int, bytes | None]] | None:
    """The last committed value by key; None where something does not parse.

    A key that a transaction touched whose marker cannot be reached is left out.
    """
    found: dict[bytes, tuple[int, bytes | None]] = {}
    waiting: dict[int, list[tuple[bytes, int, bytes | None]]] = {}  # of open transactions
    for _, data in sorted(batches.items()):
        try:
            for row in scan_batches(data, WHERE):
                attributes, producer_id = int(row["attributes"]), int(row["producer_id"])
                in_transaction = row["magic"] == 2 and attributes & (TRANSACTIONAL | CONTROL)
                if in_transaction and attributes & CONTROL:
                    marker = parse_marker(data, WHERE) if row["count"] else None
                    mine = [] if marker is None else waiting.pop(producer_id, [])
                    records = mine if marker is not None and marker.commit else []
                else:
                    records = [
                        (r.key, r.offset, r.value)
                        for r in records_of(data, row, WHERE)
                        if r.key is not None
                    ]
                    if in_transaction:
                        waiting.setdefault(producer_id, []).extend(records)
                        records = []
                for key, offset, value in records:
                    if key not in found or found[key][0] < offset:
                        found[key] = offset, value
        except CorruptData:
            return None
    unsure = {key for records in waiting.values() for key, _, _ in records}
    return {key: last for key, last in found.items() if key not in unsure}


def fence_maps() -> None:
    """A round's segments end at a fence, where a map would go on with zeros to its page's end."""

    def load(self: MappedFile) -> NDArray[np.uint8]:
        data = np.fromfile(self._path, np.uint8, self._size)
        self._require(len(data))
        return fenced(data)

    MappedFile._load = load  # type: ignore[method-assign]


TARGETS = (Target("directories", 60, make, check),)
