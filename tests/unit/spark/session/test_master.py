"""Masters that are none, or are not there, in one line and at once."""

from __future__ import annotations

import socket

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.session.master import NoMaster, check_master
from lapse.testing.ports import own_port


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*]", "local[*,4]", "local-cluster[2,1,1024]", "yarn",
     "k8s://https://host:443"],
)  # fmt: skip
def test_what_spark_knows_is_left_to_it(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "foo", "local[0]", "local[two]", "host:7077", "yarn-client"]
)
def test_what_it_does_not_know_is_refused(master: str) -> None:
    with pytest.raises(ConfigError, match="is no Spark master: "):
        check_master(master)


@pytest.mark.parametrize("address", ["host", "host:", ":7077", "host:0", "host:65536", "a:1,b"])
def test_a_master_of_sparks_own_has_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is at HOST:PORT"):
        check_master(f"spark://{address}")


def test_one_that_answers_is_enough() -> None:
    nobody = own_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{nobody},127.0.0.1:{port}")
    with pytest.raises(NoMaster, match=rf"127.0.0.1:{nobody}: Connection refused\): is it"):
        check_master(f"spark://127.0.0.1:{nobody}")
