"""Checks a session's Spark master: whether its URL is one Spark knows, and whether it is up.

Spark itself reports a wrong master URL with Java stacks, and waits more than a minute for a
standalone master that is not there.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from lapse.base.errors import ConfigError, LapseError

_KNOWN = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|spark://.+|k8s://.+|yarn"
)
_STANDALONE = "spark://"
_NETWORK = "org.apache.spark.network"
_PORT = 7077
_SECONDS_MAX = 5.0


class NoMaster(LapseError):
    """Nobody answers where a master should be, or it does not let us in."""


def check_form(master: str) -> None:
    """Raises ConfigError for what is no master, without looking for it."""
    if not _KNOWN.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no Spark master: local[N], local[*], local-cluster[N,CORES,MIB], "
            "spark://HOST:PORT, yarn or k8s://…"
        )


def check_master(master: str) -> None:
    """Raises ConfigError for what is no master; NoMaster where none of Spark's own answers."""
    check_form(master)
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), _SECONDS_MAX).close()
        except OSError as e:
            reasons.append(f"{host}:{port}: {e.strerror or e}")
        else:
            return
    raise NoMaster(f"no Spark master answers at {master} ({'; '.join(reasons)}): is it running?")


def check_admission(jvm: Any, master: str, settings: Mapping[str, str]) -> None:
    """Ask a master of Spark's own, with the secret that the session will have, whether it is there.

    A session would try for a minute and end its Java. Other masters have nothing to ask.

    Args:
        jvm: py4j's view of a Java that has Spark.
        master: Spark's.
        settings: Spark's, all of them.

    Raises:
        NoMaster: none lets us in.
    """
    if not master.startswith(_STANDALONE):
        return
    conf = jvm.org.apache.spark.SparkConf(False)
    for name, text in settings.items():
        if name.startswith(("spark.authenticate", "spark.network", "spark.ssl")):
            conf.set(name, text)
    conf.set("spark.rpc.lookupTimeout", f"{_SECONDS_MAX:.0f}s")
    levels = jvm.org.apache.logging.log4j.Level
    set_level = jvm.org.apache.logging.log4j.core.config.Configurator.setLevel
    set_level(_NETWORK, levels.OFF)  # it logs each refusal with a stack trace
    for host, port in _addresses(master):
        with contextlib.suppress(Py4JJavaError):
            _meet(jvm, conf, host, port)
            set_level(_NETWORK, levels.ERROR)
            return
    authenticates = settings.get("spark.authenticate") == "true"
    ours = "we have it" if authenticates else "we do not"
    raise NoMaster(
        f"the Spark master at {master} does not let us in: it has another spark.authenticate than "
        f"we ({ours}), or not the same secret: look at spark-defaults.conf here and there "
        '(docs/cluster.md, "Who may join")'
    )


def _meet(jvm: Any, conf: Any, host: str, port: int) -> None:
    manager = jvm.org.apache.spark.SecurityManager
    no_key, in_file = jvm.scala.Option.empty(), getattr(manager, "$lessinit$greater$default$3")()
    env = jvm.org.apache.spark.rpc.RpcEnv.create(
        "lapse-admission", host, 0, conf, manager(conf, no_key, in_file), True
    )
    try:
        env.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, port), "Master")
    finally:
        env.shutdown()


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    for text in master.removeprefix(_STANDALONE).split(","):
        host, _, port = text.strip().rpartition(":")
        number = 0
        with contextlib.suppress(ValueError):
            number = int(port)
        if not host or not 0 < number < 1 << 16:
            raise ConfigError(f"{master!r}: a Spark master is at HOST:PORT, as in host:{_PORT}")
        yield host.strip("[]"), number
