"""L3 with real brokers: an erased value never comes back with a replica that was away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import Brokers, keyed, running

ERASED = (b"erased", b"secret")


def explained(data: Path) -> str:
    told = subprocess.run(
        [sys.executable, "-m", "lapse.cli.main", "explain", str(data), "--partition", "t-0",
         "-c", "cleanup.policy=compact", "-c", "delete.retention.ms=0",
         "-c", "min.cleanable.dirty.ratio=0.9"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return told.stdout


def erased_while_away(brokers: Brokers) -> tuple[int, list[int]]:
    """A key of `t` is deleted while one that has its value is away; who is, and who is not."""
    brokers.create("t", **AT_ONCE)
    keyed(brokers, "t", [ERASED, (b"kept", b"1")])
    brokers.until(
        lambda: all(ERASED in records(p.data, "t-0") for p in brokers.processes.values()), "copies"
    )
    away = next(n for n in (1, 2, 3) if n != brokers.leader("t"))
    brokers.processes[away].kill()
    keyed(brokers, "t", [(b"erased", None)])
    return away, [n for n in (1, 2, 3) if n != away]


def test_a_tombstone_waits_for_the_replica_that_is_away(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared, BROKER) as brokers, cleaning(brokers):

        def at(n: int) -> list[tuple[bytes, bytes | None]]:
            return records(brokers.processes[n].data, "t-0")

        away, others = erased_while_away(brokers)

        def is_cleaned(n: int) -> bool:
            keyed(brokers, "t", [(b"more", b"2")])  # a segment is rolled, and a round due
            return ERASED not in at(n)

        for n in others:
            brokers.until(lambda n=n: is_cleaned(n), f"the value is gone from {n}")
        for _ in range(20):  # rounds go on meanwhile, and each could remove it
            keyed(brokers, "t", [(b"more", b"3")])
        assert all((b"erased", None) in at(n) for n in others)
        assert ERASED in at(away)
        holder = brokers.processes[others[0]].data
        brokers.until(lambda: f"replica {away}" in explained(holder), "who holds the tombstone")
        brokers.processes[away].start()

        def is_gone_everywhere() -> bool:
            keyed(brokers, "t", [(b"more", b"4")])
            return not any(key == b"erased" for n in (1, 2, 3) for key, _ in at(n))

        brokers.until(is_gone_everywhere, "value and tombstone are gone from all")
        assert all((b"kept", b"1") in at(n) for n in (1, 2, 3))
        for one in brokers.processes.values():  # what they have said by now outlives them
            one.kill()
            one.start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        assert not any("fetched anew" in one.log() for one in brokers.processes.values())


def test_who_is_away_for_too_long_is_waited_for_no_longer_and_brings_nothing_back(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    soon = {**BROKER, "lapse.replica.absence.max.ms": "3000"}
    with running(tmp_path, shared, soon) as brokers, cleaning(brokers):

        def at(n: int) -> list[tuple[bytes, bytes | None]]:
            return records(brokers.processes[n].data, "t-0")

        away, others = erased_while_away(brokers)

        def is_gone_from(n: int) -> bool:
            keyed(brokers, "t", [(b"more", b"2")])
            return not any(key == b"erased" for key, _ in at(n))

        for n in others:
            brokers.until(lambda n=n: is_gone_from(n), f"the tombstone is gone from {n}")
        assert ERASED in at(away)
        brokers.processes[away].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        assert not any(key == b"erased" for key, _ in at(away))
        assert (b"kept", b"1") in at(away)
        assert "is emptied and fetched anew" in brokers.processes[away].log()
        for n in others:
            brokers.processes[n].kill()
        brokers.until(lambda: brokers.leader("t") == away, "who was away leads")
        assert b"erased" not in {key for key, _ in at(away)}
