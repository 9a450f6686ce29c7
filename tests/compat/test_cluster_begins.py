"""Brokers of a new cluster start at the same time, or with settings that differ."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lapse.testing.broker_process import BrokerFailed, BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess

BROKERS = 4


def broker(path: Path, connect: str, n: int, **more: str) -> BrokerProcess:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    own = {"zookeeper.connect": connect, "node.id": str(n)}
    return BrokerProcess(path / f"broker-{connect.rpartition('/')[2]}-{n}", {**own, **settings})


def test_all_at_once(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    for attempt in range(2):
        connect = f"{shared.connect}/begins/{attempt}"
        brokers = [broker(tmp_path, connect, n) for n in range(1, BROKERS + 1)]
        with ExitStack() as stack, ThreadPoolExecutor(BROKERS) as pool:
            for started in [pool.submit(one.start) for one in brokers]:
                stack.callback(started.result().stop)


def test_another_cleanup_policy_is_refused(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    """One broker would compact what another one deletes."""
    connect = f"{shared.connect}/begins/policies"
    with broker(tmp_path, connect, 1):
        other = broker(tmp_path, connect, 2, log_cleanup_policy="compact")
        with pytest.raises(BrokerFailed):
            other.start()
        [said] = [line for line in other.log().splitlines() if line.startswith("lapse: ")]
        assert said.startswith("lapse: log.cleanup.policy=compact: the other brokers' is delete")
        with broker(tmp_path, connect, 3, log_cleanup_policy="delete"):
            pass
