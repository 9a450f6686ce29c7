"""Options of commands that talk to a broker."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.cli.remote import (
    Connection,
    add_remote,
    client_properties,
    config_file,
    connection,
    request_timeout_ms,
)


def asked(*words: str, environment: Mapping[str, str]) -> Connection:
    parser = argparse.ArgumentParser()
    add_remote(parser)
    return connection(parser.parse_args(words), environment)


def test_what_is_said_counts_before_the_environment_and_that_before_the_file(
    tmp_path: Path,
) -> None:
    nowhere = {"XDG_CONFIG_HOME": str(tmp_path / "nowhere")}
    assert asked(environment=nowhere) == Connection("127.0.0.1:9092", {})
    file = tmp_path / "lapse" / "client.properties"
    file.parent.mkdir()
    file.write_text("bootstrap.servers=file:1\nclient.id=mine\n")
    at_home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert asked(environment=at_home) == Connection("file:1", {"client.id": "mine"})
    other = tmp_path / "other"
    other.write_text("client.id=theirs\n")
    told = {**at_home, "LAPSE_COMMAND_CONFIG": str(other)}
    assert asked(environment=told) == Connection("127.0.0.1:9092", {"client.id": "theirs"})
    told["LAPSE_BOOTSTRAP_SERVER"] = "environment:1"
    assert asked(environment=told).bootstrap == "environment:1"
    said = asked("--bootstrap-server", "a:1,b:2", environment=told)
    assert said == Connection("a:1,b:2", {"client.id": "theirs"})
    said = asked("--command-config", str(file), environment=told)
    assert said == Connection("environment:1", {"client.id": "mine"})
    with pytest.raises(StorageError, match="gone: No such file"):
        asked(environment={"LAPSE_COMMAND_CONFIG": str(tmp_path / "gone")})


def test_somebody_without_a_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any user."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert config_file(None, {}) is None


def test_properties(tmp_path: Path) -> None:
    assert client_properties(None) == {}
    (tmp_path / "f").write_text("request.timeout.ms=5000\n")
    assert client_properties(tmp_path / "f") == {"request.timeout.ms": "5000"}
    with pytest.raises(StorageError, match="nowhere: No such file"):
        client_properties(tmp_path / "nowhere")


def test_timeouts() -> None:
    assert request_timeout_ms({}) == 30_000
    assert request_timeout_ms({"request.timeout.ms": "5000"}) == 5000
    for text in ("0", "-1", "soon", str(1 << 31)):
        with pytest.raises(ConfigError, match=f"request.timeout.ms={text}: allowed"):
            request_timeout_ms({"request.timeout.ms": text})
