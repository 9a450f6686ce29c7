"""What Spark is told so that nobody else gets in, and what everybody may know of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.session.security import (
    AUTHENTICATE,
    SECRET,
    check_cluster,
    security_settings,
    without_secrets,
)

FOLDER = Path("lapse-spark-abc")
CLUSTER = "spark://host:7077"
ENCRYPT, SOCKETS = "spark.network.crypto.enabled", "spark.python.unix.domain.socket.enabled"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"])
def test_sessions_of_this_machine_have_a_secret_each_and_loopback(master: str) -> None:
    settings, again = (security_settings(master, FOLDER) for _ in range(2))
    assert settings[AUTHENTICATE] == settings[ENCRYPT] == settings[SOCKETS] == "true"
    assert len(settings[SECRET]) == 64
    assert settings[SECRET] != again[SECRET]
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.network.crypto.saslFallback"] == "false"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.python.unix.domain.socket.dir"] == str(FOLDER)


@pytest.mark.parametrize("master", ["yarn", "k8s://host"])
def test_who_makes_secrets_himself_is_given_none(master: str) -> None:
    settings = security_settings(master, FOLDER)
    assert settings[AUTHENTICATE] == settings[ENCRYPT] == "true"
    assert SECRET not in settings
    assert "spark.driver.bindAddress" not in settings
    assert "spark.python.unix.domain.socket.dir" not in settings, "executors may not have it"
    assert check_cluster(master, settings) == {}


def test_a_socket_that_no_path_can_name_is_a_port_with_a_token() -> None:
    deep = Path("d" * 80)
    assert security_settings("local[*]", deep)[SOCKETS] == "false"


def test_no_secret_is_said_at_the_start() -> None:
    told = without_secrets(
        {
            SECRET: "a", "spark.ssl.keyPassword": "b", "spark.hadoop.fs.s3a.access.key": "c",
            "spark.hadoop.fs.s3a.session.token": "d", AUTHENTICATE: "true",
        }
    )  # fmt: skip
    assert told.at_start == {AUTHENTICATE: "true"}
    assert sorted(told.later.values()) == ["a", "b", "c", "d"]


def test_a_standalone_cluster_has_the_secret_that_its_users_said() -> None:
    assert AUTHENTICATE not in security_settings(CLUSTER, FOLDER), "what they said is asked first"
    assert check_cluster(CLUSTER, {SECRET: "s"}) == {AUTHENTICATE: "true"}
    assert check_cluster(CLUSTER, {SECRET: "s", AUTHENTICATE: "true"}) == {AUTHENTICATE: "true"}


@pytest.mark.parametrize("said", [{}, {AUTHENTICATE: "true"}, {SECRET: ""}])
def test_without_one_it_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"spark://host:7077: spark.authenticate.secret is not"):
        check_cluster(CLUSTER, said)


def test_an_open_cluster_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert check_cluster(CLUSTER, {AUTHENTICATE: "false"}) == {ENCRYPT: "false"}
    assert "spark.authenticate=false: whoever reaches" in caplog.text
