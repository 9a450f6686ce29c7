"""The settings of `lapse up`: ports filled in and nothing else, and restarts that are no weaker."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.base.properties import read_properties
from lapse.cli.up_settings import RUNNING, SETTINGS, Said, Settings, weaker, with_ports

SECURED = {
    "listeners": "IN://127.0.0.1:0, OUT://:9094,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_SSL,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.in.plain.sasl.jaas.config": 'x required password="pa\\ss é\n";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:root",
    "ssl.client.auth": "required",
    "lapse.http.protocol": "https",
    "lapse.http.login": "required",
    "connections.max.reauth.ms": "60000",
}


def prepared(data: Path, said: Said, given: dict[str, str] | None = None) -> Settings:
    if given is not None:
        data.mkdir()
        lines = (f"{name}={text}\n".replace("\\", "\\\\") for name, text in given.items())
        (data / SETTINGS).write_text("".join(lines), encoding="utf-8")
    settings = Settings(RealFs(), data, said)
    settings.prepare()
    return settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_port_0_is_filled_in(tmp_path: Path) -> None:
    given = {**SECURED, "listener.name.in.plain.sasl.jaas.config": r'x password="pa\ss é";'}
    settings = prepared(tmp_path / "data", Said({}), given)
    settings.take_ports({"IN": 40001, "OUT": 9094}, 40002)
    in_force = read_properties(tmp_path / "data" / RUNNING)
    assert in_force["listeners"] == "IN://127.0.0.1:40001, OUT://:9094,CONTROLLER://127.0.0.1:0"
    assert in_force["lapse.http.port"] == "40002"
    del given["listeners"]
    assert {name: in_force[name] for name in given} == given
    assert settings.before_restart() == ""


@pytest.mark.parametrize(
    ("listeners", "ports", "wanted"),
    [
        ("SSL://[::1]:0", {"SSL": 5}, "SSL://[::1]:5"),
        ("a.b-c://h:0,x://h:0", {"A.B-C": 5}, "a.b-c://h:5,x://h:0"),
        ("PLAINTEXT://h:7", {"PLAINTEXT": 5}, "PLAINTEXT://h:7"),
    ],
)
def test_ports(listeners: str, ports: dict[str, int], wanted: str) -> None:
    assert with_ports(listeners, ports, lambda port: port == 0) == wanted


def test_a_port_that_is_said_keeps_the_protocol(tmp_path: Path) -> None:
    given = {"listeners": "SASL_SSL://10.0.0.1:9092"}
    settings = prepared(tmp_path / "data", Said({}, 7000), given)
    assert settings.in_force["listeners"] == "SASL_SSL://10.0.0.1:7000"


def test_a_port_for_several_listeners_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--port 7000: allowed where there is one listener"):
        prepared(tmp_path / "data", Said({}, 7000), SECURED)
    assert not (tmp_path / "data" / RUNNING).exists()


def test_the_users_file_is_written_once_and_after_a_start(tmp_path: Path) -> None:
    settings = prepared(tmp_path / "data", Said({"num.partitions": "9"}, 0))
    path = tmp_path / "data" / SETTINGS
    assert not path.exists()
    settings.take_ports({"PLAINTEXT": 40001}, None)
    first = path.read_bytes()
    assert "num.partitions" not in read_properties(path)
    assert mode(path) == 0o600
    settings.take_ports({"PLAINTEXT": 40001}, None)
    assert path.read_bytes() == first


def test_nobody_else_reads_the_file_not_even_one_that_was_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in (RUNNING, RUNNING + ".tmp"):
        (data / name).write_text("old")
        (data / name).chmod(0o644)
    read_before = (data / f"{RUNNING}.tmp").open()
    umask = os.umask(0)
    try:
        prepared(data, Said({}))
    finally:
        os.umask(umask)
    assert mode(data / RUNNING) == 0o600
    assert read_before.read() == "old"
    read_before.close()


def test_the_file_is_put_right_before_a_restart(tmp_path: Path) -> None:
    settings = prepared(tmp_path / "data", Said({}), SECURED)
    settings.take_ports({"IN": 1, "OUT": 2}, None)
    written = settings.running_path.read_bytes()
    settings.running_path.write_text("listeners=PLAINTEXT://127.0.0.1:1\n")
    assert settings.before_restart() == ""
    assert settings.running_path.read_bytes() == written
    assert mode(settings.running_path) == 0o600


def test_a_weaker_restart_is_refused(tmp_path: Path) -> None:
    settings = prepared(tmp_path / "data", Said({}), SECURED)
    settings.take_ports({"IN": 1, "OUT": 2}, None)
    settings.in_force["listeners"] = "PLAINTEXT://127.0.0.1:1"
    settings.in_force["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT"
    assert settings.before_restart() == "listener PLAINTEXT is new"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("listener.security.protocol.map", "IN:PLAINTEXT,OUT:SASL_SSL", "IN requires no SASL"),
        ("listener.security.protocol.map", "IN:SASL_SSL,OUT:SASL_PLAINTEXT", "OUT has no TLS"),
        ("listeners", "IN://0.0.0.0:0", "IN is at another address"),
        ("listeners", "IN://127.0.0.1:0,OUT://:1,CONTROLLER://:0,SSL://:2", None),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512,PLAIN", "sasl.enabled.mechanisms is weaker"),
        ("listener.name.in.plain.sasl.jaas.config", "x", "plain.sasl.jaas.config is another"),
        ("authorizer.class.name", "", "authorizer.class.name is weaker"),
        ("super.users", "User:admin;User:eve", "super.users is weaker"),
        ("allow.everyone.if.no.acl.found", "true", "allow.everyone.if.no.acl.found is weaker"),
        ("ssl.client.auth", "none", "ssl.client.auth is another"),
        ("ssl.truststore.location", "/other", "ssl.truststore.location is another"),
        ("lapse.http.protocol", "http", "http.protocol is weaker"),
        ("lapse.http.login", "none", "http.login is weaker"),
        ("connections.max.reauth.ms", "0", "connections.max.reauth.ms is weaker"),
    ],
)
def test_each_way_of_being_weaker_is_told(name: str, text: str, line: str | None) -> None:
    changed = {**SECURED, name: text}
    if line is None:
        changed["listener.security.protocol.map"] += ",SSL:SSL"
        line = "listener SSL is new"
    found = weaker(broker_config(SECURED), broker_config(changed))
    assert len(found) == 1
    assert line in found[0]
    assert "pa\\ss" not in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listeners", "IN://127.0.0.1:5"),
        ("listener.security.protocol.map", "IN:SASL_SSL,OUT:SASL_SSL,CONTROLLER:PLAINTEXT"),
        ("super.users", "User:admin"),
        ("connections.max.reauth.ms", "30000"),
        ("num.partitions", "5"),
    ],
)
def test_what_is_as_closed_may_be(name: str, text: str) -> None:
    assert weaker(broker_config(SECURED), broker_config({**SECURED, name: text})) == ()
