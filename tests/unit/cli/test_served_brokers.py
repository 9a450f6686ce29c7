"""Whose rounds `lapse lifecycle` makes, and what does not go together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.cli import lifecycle
from lapse.cli.main import main
from lapse.cli.remote_brokers import RemoteBrokers
from lapse.cli.served_brokers import NearBrokers
from lapse.client.login import PLAINTEXT
from lapse.lifecycle.owner.kafka_channel import Brokers
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import Asleep
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.service.together import Member
from tests.support.broker.running import running_node, until
from tests.support.lifecycle.rounds import MEMORY, env_of


def config_of(path: Path, **more: str) -> dict[str, str]:
    named = {f"lapse.lifecycle.{name.replace('_', '.')}": text for name, text in more.items()}
    return {"log.dirs": str(path), **named}


def test_a_directory_counts_once(tmp_path: Path) -> None:
    configs = [broker_config(config_of(tmp_path / name)) for name in ("a", "b", "a")]
    with pytest.raises(ConfigError, match=r"log.dirs=\S+/a: allowed is each broker's"):
        NearBrokers(configs)


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("master", "local[1]", r"lapse.lifecycle.master: local\[\*\] and local\[1\]"),
        ("memory_bytes", "100000000", "lapse.lifecycle.memory.bytes: 100000000 and 2147483648"),
        ("cores_max", "3", "lapse.lifecycle.cores.max: 0 and 3"),
        ("idle_ms", "-1", "lapse.lifecycle.idle.ms: -1 and 600000"),
        ("nice", "1", "lapse.lifecycle.nice: 1 and 15"),
    ],
)
def test_what_there_is_once_is_said_alike(tmp_path: Path, name: str, text: str, shown: str) -> None:
    plain, other = config_of(tmp_path / "a"), config_of(tmp_path / "b", **{name: text})
    with pytest.raises(ConfigError, match=shown):
        NearBrokers([broker_config(plain), broker_config(other)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--command-config", "x"], "--command-config: allowed is it with --bootstrap-server"),
        (["CONFIG", "--bootstrap-server", "h:1"], "allowed is one CONFIG with it"),
        (["--bootstrap-server", "h"], "bootstrap.servers h: allowed is HOST:PORT"),
        (["-c", "log.cleaner.enable=false"], "log.cleaner.enable=false: allowed is true"),
    ],
)
def test_what_does_not_go_together_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(lifecycle, "yield_to_others", lambda _: None)  # it would be us
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path}\n")
    command = [str(config) if word == "CONFIG" else word for word in words]
    assert main(["lifecycle", str(config), *command]) == 2
    assert said in capsys.readouterr().err


async def test_brokers_of_a_cluster_join_as_they_are_found(tmp_path: Path) -> None:
    """None is there at first, and nothing waits for an answer."""
    settings = {"lapse.lifecycle.remote.enable": "true", "node.id": "7"}
    data, clock = tmp_path / "data", SystemClock()
    begun: list[tuple[RemoteOwner, Path]] = []

    def begin(owner: RemoteOwner, path: Path, _: object) -> Service:
        begun.append((owner, path))
        return Service(owner, Asleep(), env_of(clock), path, ServiceOptions(MEMORY, 20))

    async with running_node(data, settings) as node:
        address = node.services.address
        config = broker_config({})
        served = RemoteBrokers(Brokers(f"{address.host}:{address.port}", PLAINTEXT), config, clock)
        assert served.members(begin) == []
        assert served.places() == []
        more = served.more(begin)
        joined: list[Member] = []

        def is_found() -> bool:
            joined.extend(member for _, member in more())
            return bool(joined)

        await until(is_found)
        [member] = joined
        assert begun == []  # it has not said where its directory is
        owner = served._owners[7]
        await asyncio.to_thread(owner.greet)
        assert served.places() == [(data, owner)]
        assert len(served.members(begin)) == 1  # on the next engine
        assert more() == []
        member.leave()
        await asyncio.to_thread(served.close)
        assert str(served) == f"all brokers at {address.host}:{address.port}"
