"""Erased keys looked for beside a live broker, whose files are swapped and deleted meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.cli.main import main
from lapse.client.producer import Producer
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, judge, totals
from lapse.lifecycle.erase.replicas import ReplicaFindings, Where, look_through
from lapse.lifecycle.erase.search import make_search, spec_of
from lapse.testing.broker_process import BrokerProcess
from tests.compat.rounds_beside import rounds_beside

TOPIC = "busy"
KEPT, NEVER = b"written-once-and-never-again", b"never-written"
SWAPS_WANTED, SCANS_MAX = 4, 400
# Rounds all the time, and files that are unlinked soon after.
SETTINGS = {
    "lapse.housekeeping.interval.ms": "20",
    "log.cleaner.backoff.ms": "20",
}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "file.delete.delay.ms": "100",
    "min.cleanable.dirty.ratio": "0",
    "max.compaction.lag.ms": "250",
}


def quiet(_: object) -> None:
    """Nobody watches."""


@contextmanager
def written_to(bootstrap: str) -> Iterator[None]:
    """Records of a few keys, on and on."""
    ended = threading.Event()

    async def write() -> None:
        async with Producer(bootstrap) as producer:
            n = 0
            while not ended.is_set():
                for _ in range(50):
                    await producer.send(TOPIC, b"k%d" % (n % 20), b"%d" % n * 40)
                    n += 1
                await producer.flush()
                await asyncio.sleep(0.005)

    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def write_once(bootstrap: str) -> None:
    async with Producer(bootstrap) as producer:
        await (await producer.send(TOPIC, KEPT, b"v" * 100))


def test_a_record_is_found_in_every_scan_wherever_its_file_goes(tmp_path: Path) -> None:
    """It stays, in segment after segment; a key that was never there is proven to be nowhere.

    Or the scan says that files did not hold still.
    """
    data = tmp_path / "data"
    with BrokerProcess(data, SETTINGS) as broker:
        words = [word for name, text in CONFIGS.items() for word in ("-c", f"{name}={text}")]
        at = ("--bootstrap-server", broker.bootstrap)
        assert main(["topic", "create", TOPIC, "-p", "1", *words, *at]) == 0
        asyncio.run(write_once(broker.bootstrap))
        with rounds_beside(data), written_to(broker.bootstrap):
            homes, states = look_again_and_again(data)
        assert "ended by an error of ours" not in broker.log()
    assert len(homes) >= SWAPS_WANTED
    assert PROVEN in states
    assert set(states) <= {PROVEN, NOT_PROVEN}


def look_again_and_again(data: Path) -> tuple[set[tuple[int, ...]], list[str]]:
    """Inodes of the files where the record was, and what was said of the other key."""
    search = make_search([KEPT, NEVER])
    asked = spec_of(make_search([NEVER]), "00")
    homes: set[tuple[int, ...]] = set()
    states: list[str] = []
    for _ in range(SCANS_MAX):
        seen = looked(data, InlineAudits(search, SystemClock(), quiet, threads=1))
        count = totals([seen])[0]
        assert count.records >= 1, seen
        homes.add(tuple(sorted(f.state.inode for f in seen.files if f.counts and f.state)))
        nowhere = looked(data, InlineAudits(make_search([NEVER]), SystemClock(), quiet, threads=1))
        verdict = judge([nowhere], asked, TOPIC)
        states.append(verdict.state)
        assert verdict.state == PROVEN or "keep changing" in verdict.reasons[0], verdict
        if len(homes) >= SWAPS_WANTED and PROVEN in states:
            break
    return homes, states


def looked(data: Path, run: Callable[..., Iterator[object]]) -> ReplicaFindings:
    return look_through(Where(str(data), TOPIC), run, SystemClock())  # type: ignore[arg-type]
