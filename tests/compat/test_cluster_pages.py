"""The dashboard of a cluster: any broker shows all of it, and names who says nothing."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import keyed, running


def page(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_any_broker_shows_all_and_who_is_gone(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    with running(tmp_path, shared, {"lapse.http.port": "0"}) as brokers:
        brokers.create("t", **{"cleanup.policy": "compact", "max.compaction.lag.ms": "3600000"})
        keyed(brokers, "t", [(b"k", b"v")])
        brokers.until(lambda: brokers.in_sync("t"), "all are in sync")
        leader = brokers.leader("t")
        for one in brokers.processes.values():
            overview = page(one, "/ui")
            assert "<dt>Brokers</dt><dd>3</dd>" in overview
            assert "<dt>Logs</dt><dd>3</dd>" in overview, "each replica is one"
            assert overview.count('id="ahead-t-0-superseded"') == 1
            partition = page(one, "/ui/topics/t/0")
            titles = [
                f'id="replica-{n}"' for n in (leader, *sorted(brokers.processes.keys() - {leader}))
            ]
            places = [partition.index(title) for title in titles]
            assert places == sorted(places), "the leader first"
            assert f"On broker {leader}, its leader" in partition
            assert partition.count("all that is dirty is in the active segment") == 3
            assert "v" in page(one, "/ui/topics/t/0/records")
        gone = next(n for n in brokers.processes if n != leader)
        brokers.processes[gone].kill()
        others = [one for n, one in brokers.processes.items() if n != gone]

        def is_named() -> bool:
            found = [page(one, "/ui") for one in others]
            return all(f"Broker {gone} says nothing:" in text for text in found)

        brokers.until(is_named, "the others name it")
        assert f"Broker {gone} says nothing:" in page(others[0], "/ui/topics/t/0")
        assert f"Broker {gone} says nothing:" in page(others[0], "/ui/rounds")
