"""A broker in a process of its own, one for a whole file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import QUICK_JAVA, ZooKeeperProcess
from tests.support.metadata.line import Line


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running
        assert "ended by an error of ours" not in running.log()


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that makes no topic unless somebody says so."""
    path = tmp_path_factory.mktemp("strict") / "data"
    with BrokerProcess(path, {"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def at_hand(strict_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> BrokerProcess:
    """As somebody has it who works with one cluster: commands know where it is."""
    monkeypatch.setenv("LAPSE_BOOTSTRAP_SERVER", strict_broker.bootstrap)
    return strict_broker


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of this test's own, with two partitions, for records of any time."""
    name = request.node.name.translate(str.maketrans("[]", "--")).strip("-")
    create_topic(broker, name, "-c", "retention.ms=-1")
    return name


def create_topic(broker: BrokerProcess, name: str, *arguments: str) -> None:
    """By our own command."""
    assert main(["topic", "create", name, "-p", "2", *arguments,
                 "--bootstrap-server", broker.bootstrap]) == 0  # fmt: skip


# --- ZooKeeper ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper for all tests that harm it not; each has a path of its own."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), QUICK_JAVA) as running:
        yield running


@pytest.fixture
def line(shared: ZooKeeperProcess) -> Iterator[Line]:
    """A way to it that can be held and cut."""
    one = Line(shared.connect)
    yield one
    one.close()
