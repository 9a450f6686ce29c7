"""Erasure in a cluster: all replicas are looked through, or those that were not are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import Brokers, keyed, reassign, running

NOT_PROVEN, WRONG_USAGE = 3, 2


def lapse(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lapse.cli.main", *map(str, arguments)],
        check=False, capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def replicas(brokers: Brokers, *ids: int) -> list[object]:
    return [word for n in ids for word in ("--replica", brokers.processes[n].data)]


def test_an_erasure_is_proven_on_all_replicas(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    with running(tmp_path, shared, BROKER) as brokers, cleaning(brokers):
        brokers.create("t", **AT_ONCE)
        keyed(brokers, "t", [(b"erased", b"secret"), (b"kept", b"1")])
        asked = ("--topic", "t", "--key", "erased", "--bootstrap-server", brokers.bootstrap)
        order = ("--order", tmp_path / "order", "--sign-with", made_key(tmp_path))
        refused = lapse("erase", *asked, *order, *replicas(brokers, 1, 2))
        assert refused.returncode == WRONG_USAGE, refused.stderr
        assert "t-0 has 3 replicas (on brokers 1, 2, 3)" in refused.stderr
        done = lapse("erase", *asked, *order, *replicas(brokers, 1, 2, 3))
        assert done.returncode == 0, done.stdout + done.stderr
        for one in brokers.processes.values():
            found = records(one.data, "t-0")
            assert (b"kept", b"1") in found
            assert b"erased" not in dict(found)


def test_a_proof_names_the_replicas_that_it_was_not_given(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """Of a broker that is away, too, whose replica has moved meanwhile."""
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1, 2)
        keyed(brokers, "t", [(b"kept", b"1")])
        brokers.until(lambda: len(records(brokers.processes[2].data, "t-0")) == 1, "the copy")

        def proven(*ids: int) -> tuple[int, list[str]]:
            asked = ("--topic", "t", "--key", "gone", "--sign-with", made_key(tmp_path))
            done = lapse("prove-erased", *asked, "--json", *replicas(brokers, *ids))
            report = json.loads(done.stdout.splitlines()[1])
            return done.returncode, report["verdict"]["reasons"]

        missing = "t-0: broker 2 has a replica, and no given directory has that"
        assert proven(1) == (NOT_PROVEN, [missing])
        assert proven(1, 2) == (0, [])
        brokers.processes[2].kill()
        move(brokers, 1, 3)
        former = (
            "t-0: broker 2 may still have files of a former replica, and no given directory is "
            "that broker's"
        )
        brokers.until(lambda: proven(1, 3) == (NOT_PROVEN, [former]), "who has it now")
        assert proven(1, 2, 3) == (0, [])
        brokers.processes[2].start()
        brokers.until(lambda: proven(1, 3) == (0, []), "2 has removed it, and said so")


def made_key(path: Path) -> Path:
    key = path / "key.pem"
    if not key.exists():
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ED25519", "-out", str(key)],
            check=True, capture_output=True,
        )  # fmt: skip
    return key


def move(brokers: Brokers, *target: int) -> None:
    assert reassign(brokers, "t", 0, *target, by=target[0]) == 0
    brokers.until(
        lambda: sorted(brokers.topic("t").partitions[0].replicas) == sorted(target), "the move"
    )
