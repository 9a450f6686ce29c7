"""One lifecycle service for all brokers of a cluster, whose log directories it sees.

As on shared storage: the services know the brokers by their listeners alone.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE
from tests.support.broker.cluster import keyed, running
from tests.support.broker.remote_service import (
    REMOTE,
    TWICE,
    LifecycleService,
    is_cleaned,
    reported,
    service,
)
from tests.support.broker.secured import WITH_ACLS, client_file


def test_one_serves_all_and_another_follows_when_it_is_killed(
    tmp_path: Path, shared: ZooKeeperProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, shared, REMOTE) as brokers:
        brokers.create("t", **AT_ONCE)
        keyed(brokers, "t", TWICE)
        first = LifecycleService(tmp_path, "first", brokers.bootstrap)
        brokers.until(lambda: is_cleaned(brokers, "t"), "all replicas are cleaned")
        with service(tmp_path, "second", brokers.bootstrap) as second:
            brokers.until(
                lambda: second.log().count("is this broker's lifecycle service") == 3, "it waits"
            )
            assert first.end() == 0
            keyed(brokers, "t", TWICE)
            brokers.until(lambda: is_cleaned(brokers, "t"), "the other one follows")
            brokers.until(
                lambda: is_cleaned(brokers, "t") and all(reported(brokers).values()),
                "rounds of each",
            )
            # A broker that dies takes nobody else's rounds along, and is served again.
            victim = next(n for n in (1, 2, 3) if n != brokers.leader("t"))
            brokers.processes[victim].kill()
            keyed(brokers, "t", TWICE)
            brokers.processes[victim].start()
            back = f"broker {victim}: the owner is back"
            brokers.until(lambda: back in second.log(), "it is served again")
            brokers.until(lambda: is_cleaned(brokers, "t"), "the one that was away, too")
            assert main(["rounds", "show", "--bootstrap-server", brokers.bootstrap]) == 0
            assert "is not served" not in capsys.readouterr().out
        assert second.process.returncode == 0, second.log()
        for one in brokers.processes.values():
            assert not list(one.data.glob("lease-*")), second.log()


def test_one_that_hangs_is_followed_and_can_do_no_harm(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """What it says when it wakes up is refused: another one has cleaned meanwhile."""
    with running(tmp_path, shared, REMOTE) as brokers:
        brokers.create("t", **AT_ONCE)
        first = LifecycleService(tmp_path, "first", brokers.bootstrap)
        keyed(brokers, "t", TWICE)
        brokers.until(lambda: is_cleaned(brokers, "t"), "all replicas are cleaned")
        first.process.send_signal(signal.SIGSTOP)
        try:
            with service(tmp_path, "second", brokers.bootstrap):
                keyed(brokers, "t", TWICE)
                brokers.until(lambda: is_cleaned(brokers, "t"), "the other one follows")
                first.process.send_signal(signal.SIGCONT)
                brokers.until(
                    lambda: "another service may have come meanwhile" in first.log(),
                    "it is refused",
                )
                keyed(brokers, "t", TWICE)
                brokers.until(lambda: is_cleaned(brokers, "t"), "all goes on")
        finally:
            first.process.send_signal(signal.SIGCONT)
            first.end()


def test_who_may_not_act_as_a_broker_is_no_service(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """Bob has no right, admin is a super user; brokers log in as nobody here."""
    settings = {**REMOTE, **WITH_ACLS}
    with running(tmp_path, shared, settings) as brokers:
        brokers.create("t", **AT_ONCE)
        keyed(brokers, "t", TWICE)
        entrance = ",".join(one.listeners["SASL_PLAINTEXT"] for one in brokers.processes.values())
        bob = client_file(tmp_path / "bob.properties", "bob")
        admin = client_file(tmp_path / "admin.properties", "admin")
        with service(tmp_path, "bob", entrance, "--command-config", str(bob)) as stranger:
            brokers.until(
                lambda: stranger.log().count("CLUSTER_AUTHORIZATION_FAILED") >= 3, "it is refused"
            )
            with service(tmp_path, "admin", entrance, "--command-config", str(admin)):
                brokers.until(lambda: is_cleaned(brokers, "t"), "all replicas are cleaned")
