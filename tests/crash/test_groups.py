"""Die in the commit of groups of several old segments; the ledger tells exactly what is gone.

After any death a group is as it was, or in place, booked and with none of its old segments left.
In between nobody may be told that it is done: what is superseded would stay for ever, since no
round looks below the checkpoint (W-2, W-5, W-6).

The logs: one whose rewritten group equals its first old segment byte for byte; one of whose group
the last old segments vanish wholly, the first with them in another; one with values and tombstones
that vanish together; one of which only bytes change and no size does; small ones at random.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from lapse.base.config import TopicConfig
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import DELETE_HORIZON
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.record_history import history_of
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.receipt import Receipt
from lapse.log import checkpoints
from lapse.log.manifest import manifest_path
from lapse.log.swap import recover
from lapse.records.batch import scan_batches
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.opened import (
    KILL,
    POWER_CUT,
    POWER_CUT_AND_RENAMES,
    Losses,
    Opened,
    copied,
    departed,
    require_tidy,
    sampled,
)
from tests.support.lifecycle.rounds import NOW, Pair, Unsynced, compacted, make_logs, records_in

TP = TopicPartition("a", 0)
WRITTEN = compacted(internal_segment_bytes=300)  # three records a segment
MERGED = compacted(internal_segment_bytes=1650)  # of which a group takes six
# So near that a horizon takes no byte more than a time does.
NEAR = compacted(internal_segment_bytes=300, delete_retention_ms=10)
State = dict[int, Pair]


def _three(*keys: str) -> list[Pair]:
    """A segment's worth."""
    return [(key, "." * 20) for key in keys]


def _first_stays() -> list[Pair]:
    """The first segment is unique; five more of its group are superseded by the next group."""
    superseded = [pair for n in range(5) for pair in _three(*(f"k{n}{i}" for i in range(3)))]
    return [*_three("u0", "u1", "u2"), *superseded, *superseded]


def _tails_vanish() -> list[Pair]:
    """The first segment loses some; five after it lose all."""
    superseded = [pair for n in range(5) for pair in _three(*(f"k{n}{i}" for i in range(3)))]
    return [*_three("u0", "k00", "u2"), *superseded, *_three("u3", "u4", "u5"), *superseded]


def _all_vanishes() -> list[Pair]:
    """Nothing of the first group is left, and what took the place of its values are tombstones."""
    values = [pair for n in range(3) for pair in _three(*(f"k{n}{i}" for i in range(3)))]
    gone: list[Pair] = [(key, None) for key, _ in values[:8]]  # four a segment
    return [*values, *gone, *values]


def _nothing_but_a_horizon() -> list[Pair]:
    """The only segment that changes has a tombstone, which gets a delete horizon."""
    return [*_three("u0", "u1", "u2"), ("t", None), *_three("u3", "u4", "u5", "u6", "u7")]


SHAPES: dict[str, Callable[[], list[Pair]]] = {
    "first-stays": _first_stays,
    "tails-vanish": _tails_vanish,
    "all-vanishes": _all_vanishes,
}


def _at_random(rolls: random.Random) -> list[Pair]:
    keys = [f"k{n}" for n in range(rolls.choice((2, 5, 12)))]
    pairs: list[Pair] = []
    for n in range(rolls.randint(15, 60)):
        key = rolls.choice(keys) if rolls.random() < 0.7 else f"u{n}"
        pairs.append((key, None if rolls.random() < 0.15 else f"v{n}" + "." * rolls.randint(0, 40)))
    return pairs


def opened(path: Path, fs: Fs, config: TopicConfig) -> Opened:
    return Opened.at(path, fs, config, [TP])


@dataclass(frozen=True)
class Case:
    """A log before its round, and what a round leaves of it.

    Attributes:
        operations: of the commit.
    """

    path: Path
    full: State
    final: State
    operations: int
    receipt: Receipt
    config: TopicConfig


def case_of(folder: Path, pairs: list[Pair], config: TopicConfig = MERGED) -> Case:
    before = folder / "before"
    make_logs(before, {TP.topic: [*pairs, ("z", "last")]}, WRITTEN, ManualClock(NOW))
    whole = copied(before, folder / "whole")
    fs, receipt = commit_and_die(whole, None, KILL, config=config)
    full, final = records_in(before / str(TP)), records_in(whole / str(TP))
    return Case(before, full, final, fs.operations, receipt, config)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    made = {}
    for name, pairs in SHAPES.items():
        made[name] = case_of(tmp_path_factory.mktemp(name), pairs())
        assert max(len(g.old_bases) for g in made[name].receipt.groups) >= 5
    return made


def commit_and_die(
    path: Path, die_at: int | None, losses: Losses, seed: int = 0, config: TopicConfig = MERGED
) -> tuple[CrashFs, Receipt]:
    """A round, whose commit dies at an operation (None: counts them)."""
    fs = CrashFs(Unsynced(), None, seed=seed, **losses)
    owner = opened(path, fs, config)
    [receipt] = owner.rounds("r1")
    start = fs.operations
    fs._die_at = None if die_at is None else start + die_at
    with contextlib.suppress(Crashed):
        [result] = owner.owner.commit([receipt])
        assert result.error is None
    fs.operations -= start
    owner.abandon()
    return fs, receipt


def check_after(path: Path, case: Case) -> None:
    """What a successor finds, that nothing of it lies, and that it can go on from there."""
    again = opened(path, Unsynced(), case.config)
    log_dir = path / str(TP)
    found, gone = records_in(log_dir), departed(log_dir)
    assert found == {offset: pair for offset, pair in case.full.items() if offset not in gone}
    assert case.final.items() <= found.items()
    assert sum(e.stamped for e in ledger.read(log_dir)) == _stamped(log_dir)
    require_tidy(log_dir)
    _check_told(again, found, case)
    saved = checkpoints.read_offsets(path / checkpoints.CLEANER).get(TP)
    assert saved in {None, len(case.full)}
    if saved is not None:  # else no round would ever look there again
        assert found == case.final
    if found != case.final:
        [result] = again.owner.commit(again.rounds("r2"))
        assert result.error is None
    assert records_in(log_dir) == case.final
    assert departed(log_dir) == case.full.keys() - case.final.keys()
    again.directory.close()


def _stamped(log_dir: Path) -> int:
    """Batches with a delete horizon."""
    rows = [scan_batches(path.read_bytes(), "a") for path in log_dir.glob("*.log")]
    return sum(int((some["attributes"] & DELETE_HORIZON != 0).sum()) for some in rows)


def _check_told(again: Opened, found: State, case: Case) -> None:
    """Of no dead record it is said that it is the last of its key."""
    [info] = again.owner.logs()
    decision = decide(info, NOW, RoundOptions())
    for offset in found.keys() - case.final.keys():
        assert "the last of its key" not in history_of(decision, offset).text


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kill_anywhere_in_the_commit_of_a_large_group(
    tmp_path: Path, cases: dict[str, Case], scaled: Callable[[int], int], seed: int, shape: str
) -> None:
    case = cases[shape]
    assert case.operations > 50
    for die_at in sampled(case.operations, max(60, scaled(400)), seed):
        path = copied(case.path, tmp_path / "data")
        fs, _ = commit_and_die(path, die_at, KILL, seed=die_at)
        assert fs.crashed
        check_after(path, case)


def test_a_group_that_changes_in_no_byte_count(tmp_path: Path) -> None:
    """It gets a delete horizon, which the ledger vouches for: not before it is there."""
    case = case_of(tmp_path, _nothing_but_a_horizon(), NEAR)
    [group] = case.receipt.groups
    name = f"{TP}/{group.base_offset:020d}.log"
    sizes = [(tmp_path / of / name).stat().st_size for of in ("before", "whole")]
    assert sizes[0] == sizes[1]
    assert group.stamped == 1
    for die_at in range(1, case.operations + 1):
        path = copied(case.path, tmp_path / "data")
        commit_and_die(path, die_at, KILL, config=NEAR)
        again = opened(path, Unsynced(), NEAR)
        stamped = _stamped(path / str(TP))
        assert sum(e.stamped for e in ledger.read(path / str(TP))) == stamped
        saved = checkpoints.read_offsets(path / checkpoints.CLEANER).get(TP)
        assert (saved is not None) == (stamped > 0) or die_at >= case.operations - 5
        again.directory.close()


@pytest.mark.parametrize("losses", [POWER_CUT, POWER_CUT_AND_RENAMES], ids=["cut", "and-renames"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_power_cut_in_the_commit_of_a_large_group(
    tmp_path: Path, cases: dict[str, Case], scaled: Callable[[int], int], seed: int, shape: str,
    losses: Losses,
) -> None:  # fmt: skip
    case = cases[shape]
    for die_at in sampled(case.operations, scaled(400), seed):
        path = copied(case.path, tmp_path / "data")
        commit_and_die(path, die_at, losses, seed=seed + die_at)
        check_after(path, case)


@pytest.mark.parametrize("losses", [KILL, POWER_CUT_AND_RENAMES], ids=["kill", "cut-and-renames"])
@pytest.mark.parametrize("shape", SHAPES)
def test_recovery_of_a_large_group_may_die_too(
    tmp_path: Path, cases: dict[str, Case], scaled: Callable[[int], int], seed: int, shape: str,
    losses: Losses,
) -> None:  # fmt: skip
    """The commit dies, its recovery does, and the third owner finds everything whole."""
    case, rolls = cases[shape], random.Random(seed)
    for _ in range(scaled(400)):
        path = copied(case.path, tmp_path / "data")
        commit_and_die(path, rolls.randint(1, case.operations), KILL, seed=seed)
        fs = CrashFs(Unsynced(), None, **losses)
        opened(copied(path, tmp_path / "counted"), fs, MERGED).abandon()
        operations = fs.operations
        fs = CrashFs(Unsynced(), rolls.randint(1, operations), seed=operations, **losses)
        with pytest.raises(Crashed):
            opened(path, fs, MERGED)
        check_after(path, case)


def test_small_logs_at_random(tmp_path: Path, scaled: Callable[[int], int], seed: int) -> None:
    """One death each; of 200 such logs twelve were left with records that no round took."""
    rolls = random.Random(seed)
    several = 0
    for n in range(scaled(400)):
        case = case_of(tmp_path / str(n), _at_random(rolls))
        several += any(len(group.old_bases) > 1 for group in case.receipt.groups)
        path = copied(case.path, tmp_path / "data")
        losses = rolls.choice((KILL, KILL, POWER_CUT_AND_RENAMES))
        commit_and_die(path, rolls.randint(1, case.operations), losses, seed=rolls.getrandbits(32))
        check_after(path, case)
        shutil.rmtree(tmp_path / str(n))
    assert several > 0


# --- what others have done meanwhile -------------------------------------------------------------


def _died_halfway(case: Case, path: Path) -> Path:
    """Some old segments of the first group are `.deleted`, others not; its new one is a `.swap`."""
    for die_at in range(1, case.operations):
        commit_and_die(copied(case.path, path), die_at, KILL, seed=0)
        names = {p.name.partition(".")[2] for p in (path / str(TP)).iterdir()}
        if {"log.deleted", "log.swap", "log"} <= names and len(_old_left(path, case)) == 3:
            return path
    raise AssertionError("no such moment")


def _old_left(path: Path, case: Case) -> list[Path]:
    paths = (path / str(TP) / f"{b:020d}.log" for b in case.receipt.groups[0].old_bases)
    return [p for p in paths if p.exists()]


def _rewrite_intent(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    intent = path / str(TP) / ".lapse" / "intent"
    told = msgspec.json.decode(intent.read_bytes())
    for group in told["groups"]:
        change(group)
    intent.write_bytes(msgspec.json.encode(told))


def test_an_older_version_left_the_intent(tmp_path: Path, cases: dict[str, Case]) -> None:
    """It does not say how many bytes the old segments had; their bases do."""
    path = _died_halfway(cases["tails-vanish"], tmp_path / "data")
    _rewrite_intent(path, lambda group: group.pop("old_sizes"))
    check_after(path, cases["tails-vanish"])


@pytest.mark.parametrize("shape", SHAPES)
def test_an_older_version_or_kafka_finished_the_swap(
    tmp_path: Path, cases: dict[str, Case], shape: str
) -> None:
    """By W-5 alone: the group is not in place, so nothing is booked and the next round takes it."""
    case = cases[shape]
    path = _died_halfway(case, tmp_path / "data")
    log_dir = path / str(TP)
    intent = (log_dir / ".lapse" / "intent").read_bytes()
    (log_dir / ".lapse" / "intent").unlink()
    recover(RealFs(), log_dir)
    assert _old_left(path, case)
    (log_dir / ".lapse" / "intent").write_bytes(intent)
    found = records_in(log_dir)
    again = opened(path, Unsynced(), MERGED)
    assert records_in(log_dir) == found
    assert departed(log_dir) == set()
    assert TP not in checkpoints.read_offsets(path / checkpoints.CLEANER)
    _check_told(again, found, case)
    [result] = again.owner.commit(again.rounds("r2"))
    assert result.error is None
    assert records_in(log_dir) == case.final
    again.directory.close()


def test_a_segment_that_is_not_what_it_was_stays(tmp_path: Path, cases: dict[str, Case]) -> None:
    """In doubt a record stays: its base is an old one's, its bytes are not."""
    case = cases["tails-vanish"]
    path = _died_halfway(case, tmp_path / "data")
    log_dir = path / str(TP)
    stays = _old_left(path, case)[-1]
    data = stays.read_bytes()
    _rewrite_intent(path, lambda group: group.update(old_sizes=[1] * len(group["old_bases"])))
    again = opened(path, Unsynced(), MERGED)
    assert stays.read_bytes() == data
    assert departed(log_dir) == set()
    assert TP not in checkpoints.read_offsets(path / checkpoints.CLEANER)
    again.directory.close()


def test_retention_took_the_old_segments_meanwhile(tmp_path: Path, cases: dict[str, Case]) -> None:
    """Between the intent and the first rename; then the process dies."""
    case = cases["tails-vanish"]
    path = copied(case.path, tmp_path / "data")
    for die_at in range(1, case.operations):
        commit_and_die(copied(case.path, path), die_at, KILL, seed=0)
        if (path / str(TP) / ".lapse" / "intent").exists():
            break
    taken = case.receipt.groups[0].old_bases[:2]
    for base in taken:
        for name in (path / str(TP)).glob(f"{base:020d}.*"):
            name.unlink()
    manifest_path(path / str(TP)).unlink()  # which retention strikes them from
    left = {o: pair for o, pair in case.full.items() if o >= case.receipt.groups[0].old_bases[2]}
    again = opened(path, Unsynced(), MERGED)
    assert records_in(path / str(TP)) == left
    assert departed(path / str(TP)) == set()
    assert TP not in checkpoints.read_offsets(path / checkpoints.CLEANER)
    require_tidy(path / str(TP))
    again.directory.close()
