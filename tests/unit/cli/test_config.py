"""`lapse config check`: all that is wrong with a file, before nothing is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lapse.base.config import broker_config, overlaid
from lapse.base.environment import settings_in
from lapse.base.errors import ConfigError
from lapse.base.properties import server_properties
from lapse.cli.config import NOTE, WRONG, findings
from lapse.cli.main import main

KAFKAS = """\
broker.id=0
listeners=PLAINTEXT://:9092
num.network.threads=3
log.dirs=/var/lib/kafka-logs
log.retention.hours=168
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
"""


def checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *more: str
) -> tuple[int, str]:
    path = tmp_path / "server.properties"
    path.write_text(text)
    code = main(["config", "check", str(path), *more])
    return code, capsys.readouterr().out


def test_kafkas_own_file_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked(tmp_path, capsys, KAFKAS)
    assert code == 0
    notes = {line.split()[1] for line in out.splitlines() if line.startswith("note")}
    assert notes == {"num.network.threads"}
    assert not [line for line in out.splitlines() if line.startswith("wrong")]
    assert out.endswith("nothing is wrong with it\n")


def test_all_that_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = KAFKAS + "log.retention.ms=abc\nlapse.http.prot=1\nlog.segment.bytess=5\n"
    code, out = checked(tmp_path, capsys, text, "--json")
    found = {one["setting"]: one for one in map(json.loads, out.splitlines())}
    assert code == 1
    assert found["log.retention.ms"]["state"] == "wrong"
    assert "did you mean lapse.http.port?" in found["lapse.http.prot"]["text"]
    assert found["log.segment.bytess"] == {
        "state": "note",
        "setting": "log.segment.bytess",
        "text": "Lapse does not heed it; did you mean log.segment.bytes?",
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("ssl.keystore.loction", "Lapse does not heed it; did you mean ssl.keystore.location?"),
        ("listener.name.a.ssl.client.aut", "Lapse does not heed it; did you mean ssl.client.auth?"),
        ("listener.name.a.guess.sasl.jaas.config", "Lapse does not heed it"),
        ("sasl.login.class", "Lapse does not heed it"),
        ("sasl.jaas.config", "listener.name.NAME.MECHANISM.sasl.jaas.config"),
    ],
)
def test_what_of_security_counts_for_nothing_is_told(setting: str, said: str) -> None:
    [found] = findings({"log.dirs": "/x", setting: "x"})
    assert (found.state, found.setting) == (NOTE, setting)
    assert said in found.text


@pytest.mark.parametrize(
    "setting",
    [
        "ssl.endpoint.identification.algorithm",
        "listener.name.a.scram-sha-256.sasl.jaas.config",
        "listener.name.a.PLAIN.sasl.jaas.config",
        "listener.name.a.max.connection.creation.rate",
        "listener.name.A.ssl.key.password",
        "listener.name.with.dots-2.ssl.key.password",
        "listener.name.with.dots-2.plain.sasl.jaas.config",
    ],
)
def test_what_of_security_counts_is_not(setting: str) -> None:
    assert not [one for one in findings({"log.dirs": "/x", setting: "1"}) if one.state == NOTE]


@pytest.mark.parametrize(
    "text",
    [
        "listeners=CLIENTS://:9092",
        "log.dirs=/a,/a",
        "log.cleaner.min.compaction.lag.ms=9\nlog.cleaner.max.compaction.lag.ms=5",
        "inter.broker.listener.name=NONE",
        "listeners=SSL://:9092",
        "listeners=SSL://:9092\nssl.keystore.type=PEM\nssl.keystore.location=/none.pem",
        "listeners=SASL_PLAINTEXT://:9092\nsasl.enabled.mechanisms=PLAIN",
        "listeners=SASL_PLAINTEXT://:9092\nsasl.enabled.mechanisms=GUESS",
        "authorizer.class.name=none",
        "lapse.http.protocol=https",
    ],
)
def test_what_does_not_go_together_is_told(text: str, tmp_path: Path) -> None:
    """One by one they are fine."""
    path = tmp_path / "server.properties"
    path.write_text(text)
    [found] = findings(server_properties(path))
    assert (found.state, found.setting) == (WRONG, "")


def test_what_is_told_is_what_a_broker_says(tmp_path: Path) -> None:
    """A file without a fault is one that it starts with."""
    for text in ("", "log.retention.ms=-2", "lapse.x=1", "num.partitions=0"):
        path = tmp_path / "server.properties"
        path.write_text(f"log.dirs=/x\n{text}")
        settings = server_properties(path)
        is_wrong = any(one.state == WRONG for one in findings(settings))
        try:
            broker_config(settings)
        except ConfigError:
            assert is_wrong, text
        else:
            assert not is_wrong, text


def test_the_environment_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_LOG_RETENTION_MS", "soon")
    monkeypatch.setenv("KAFKA_LOG_RETENTION_MSS", "5")
    code, out = checked(tmp_path, capsys, KAFKAS)
    assert code == 1
    assert "log.retention.ms=soon: allowed is" in out
    assert "did you mean KAFKA_LOG_RETENTION_MS?" in out


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(tmp_path / "none")]) == 3
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("in_file", "variable", "field", "found"),
    [
        ("node.id=1", "KAFKA_BROKER_ID", "node_id", 3),
        ("broker.id=1", "KAFKA_NODE_ID", "node_id", 3),
        ("broker.id=1", "KAFKA_BROKER_ID", "node_id", 3),
        ("log.retention.ms=1", "KAFKA_LOG_RETENTION_HOURS", "defaults",
         (("log.retention.hours", "3"),)),
    ],
)  # fmt: skip
def test_what_counts_more_does_so_by_whatever_name(
    in_file: str, variable: str, field: str, found: object
) -> None:
    """A setting may be called otherwise in the file than in the environment."""
    name, _, text = in_file.partition("=")
    settings = overlaid({name: text}, settings_in({variable: "3"}))
    assert getattr(broker_config(settings), field) == found
