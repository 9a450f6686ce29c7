"""What `lapse up --brokers` asks of each broker, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.cli.up_cluster import Wish

ENSEMBLE = {"zookeeper.connect": "zoo:1/lapse"}


def options(wish: Wish, number: int) -> dict[str, str]:
    """Of one broker: settings by name, and options."""
    command = wish.command(number)
    assert command.pop() == "--no-lifecycle"
    up = command[command.index("up") + 1 :]
    return {**dict(zip(up[::2], up[1::2], strict=True)), **wish.settings_of(number, ENSEMBLE)}


def test_each_broker_has_its_own_directory_id_and_ports(tmp_path: Path) -> None:
    wish = Wish(tmp_path, 3, engine="inline")
    found = [options(wish, n) for n in (1, 2, 3)]
    assert [one["--data"] for one in found] == [str(tmp_path / f"broker-{n}") for n in (1, 2, 3)]
    assert [one["node.id"] for one in found] == ["1", "2", "3"]
    assert [(one["--port"], one["--http-port"]) for one in found] == [
        ("9092", "9093"), ("9094", "9095"), ("9096", "9097"),
    ]  # fmt: skip
    assert {one["zookeeper.connect"] for one in found} == {"zoo:1/lapse"}


def test_one_service_makes_the_rounds_of_all(tmp_path: Path) -> None:
    command = Wish(tmp_path, 3, engine="inline").service_command("inline")
    configs = [str(tmp_path / f"broker-{n}" / "lapse-up.properties") for n in (1, 2, 3)]
    assert command[-6:] == ["lifecycle", *configs, "--engine", "inline"]


def test_port_0_is_a_free_one_for_each(tmp_path: Path) -> None:
    found = options(Wish(tmp_path, 2, 0, 0), 2)
    assert (found["--port"], found["--http-port"]) == ("0", "0")


@pytest.mark.parametrize(("brokers", "factor"), [(2, "2"), (3, "3"), (5, "3")])
def test_topics_get_as_many_replicas_as_can_be_three(
    tmp_path: Path, brokers: int, factor: str
) -> None:
    assert options(Wish(tmp_path, brokers), 1)["default.replication.factor"] == factor
    said = Wish(tmp_path, brokers, settings=(("default.replication.factor", "1"),))
    assert options(said, 1)["default.replication.factor"] == "1"


@pytest.mark.parametrize("name", ["node.id", "log.dirs", "listeners", "lapse.http.port"])
def test_what_each_broker_has_of_its_own_cannot_be_said_for_all(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"-c {name}: each broker"):
        Wish(tmp_path, 3, settings=((name, "1"),)).check()


def test_a_directory_of_a_broker_alone_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("node.id=1")
    with pytest.raises(ConfigError, match="name another directory"):
        Wish(tmp_path, 3).check()


def test_an_ensemble_that_is_named_is_taken(tmp_path: Path) -> None:
    wish = Wish(tmp_path, 3, settings=(("zookeeper.connect", "a:1"),))
    wish.check()
    assert wish.zookeeper_connect == "a:1"
    assert options(wish, 1)["zookeeper.connect"] == "a:1"


def test_no_setting_is_in_a_command_which_all_users_see(tmp_path: Path) -> None:
    wish = Wish(tmp_path, 2, settings=(("ssl.key.password", "hunter2"),))
    assert "hunter2" not in " ".join(wish.command(1))
    assert options(wish, 1)["ssl.key.password"] == "hunter2"
