"""Spark settings of the user's: which win, which are refused, and where they are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.cli.options import spark_settings
from lapse.spark.session.user_settings import OURS, spark_defaults, that_win

LOCAL, CLUSTER = "local[2]", "spark://host:7077"
DEFAULTS = """\
# of the cluster
spark.driver.memory   3g
spark.ui.enabled=true
  spark.eventLog.dir : file:///logs with space
spark.empty
spark.authenticate false
spark.authenticate.secret hidden
spark.python.daemon.module theirs
other.setting 1
! no setting
"""


def test_defaults_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    assert spark_defaults({}) == {}, "none beside pyspark itself"
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    found = spark_defaults({"SPARK_HOME": str(tmp_path)})
    assert found == {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "true",
        "spark.eventLog.dir": "file:///logs with space",
        "spark.empty": "",
        "spark.authenticate": "false",
        "spark.authenticate.secret": "hidden",
        "spark.python.daemon.module": "theirs",
    }
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path / "conf")}) == found
    (tmp_path / "conf" / "spark-defaults.conf").write_bytes(b"spark.x \xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        spark_defaults({"SPARK_HOME": str(tmp_path)})


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_what_is_said_wins_over_defaults_and_those_over_ours(master: str) -> None:
    """But not over what a session is made of; secrets go their own way."""
    defaults = {
        "spark.driver.memory": "3g", "spark.ui.enabled": "true", "spark.authenticate": "false",
        "spark.authenticate.secret": "hidden", "spark.python.daemon.module": "theirs",
        "spark.network.crypto.enabled": "false", "spark.redaction.regex": "nothing",
        "spark.python.unix.domain.socket.dir": "/tmp",
    }  # fmt: skip
    said = {"spark.driver.memory": "4g", "spark.authenticate": "true"}
    assert that_win(master, said, defaults) == {
        "spark.driver.memory": "4g", "spark.ui.enabled": "true",
    }  # fmt: skip
    assert not set(OURS) & {"spark.ui.enabled", "spark.driver.memory"}


def test_addresses_are_the_users_where_other_machines_take_part() -> None:
    defaults = {"spark.driver.host": "10.0.0.5"}
    assert that_win(LOCAL, {}, defaults) == {}
    assert that_win(CLUSTER, {}, defaults) == defaults
    assert that_win(CLUSTER, {"spark.driver.bindAddress": "0.0.0.0"}, {}) == {
        "spark.driver.bindAddress": "0.0.0.0"
    }
    for address in ("127.0.0.1", "::1", "localhost"):
        that_win(LOCAL, {"spark.driver.host": address}, {})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("driver.memory", "1g", "is no setting of Spark's"),
        ("spark.master", "yarn", "--master says it"),
        ("spark.python.daemon.module", "x", "is ours to say"),
        ("spark.remote", "sc://host", "--master says it"),
        ("spark.python.unix.domain.socket.dir", "/tmp", "a folder of the session's own"),
        ("spark.redaction.regex", "nothing", r"must match spark\.authenticate\.secret"),
        ("spark.redaction.regex", "(", r"must match spark\.authenticate\.secret"),
        ("spark.authenticate", "false", "allowed is true"),
        ("spark.network.crypto.enabled", "false", "allowed is true"),
        ("spark.network.crypto.saslFallback", "true", "allowed is false"),
        ("spark.ui.killEnabled", "true", "allowed is false"),
        ("spark.authenticate.secret", "x", "everybody on this machine sees a command line"),
        ("spark.hadoop.fs.s3a.secret.key", "x", "everybody on this machine sees a command line"),
        ("spark.driver.bindAddress", "0.0.0.0", "addresses of this machine alone"),
        ("spark.driver.host", "host", "addresses of this machine alone"),
    ],
)
def test_what_may_not_be_said_is_refused_with_the_reason(name: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        that_win(LOCAL, {name: text}, {})
    assert "x" not in str(refused.value).replace(name, "") or text != "x"


def test_a_setting_is_a_name_and_a_value() -> None:
    assert spark_settings(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    with pytest.raises(ConfigError, match=r"--conf spark\.a: allowed is NAME=VALUE"):
        spark_settings(["spark.a"])
