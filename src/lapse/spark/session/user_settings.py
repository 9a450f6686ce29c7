"""Spark settings of the user's: those of `spark-defaults.conf`, and those of a command line.

They win over what Lapse only prefers (memory, pages, the event log, how much is logged). What
rounds and tasks rest on stays as it is, and so does what keeps others out: a weaker word for that
on a command line is refused. In `spark-defaults.conf`, which other programs use too, it has no
effect; but for a standalone cluster, whose authentication is the user's to say (`security`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from lapse.base.errors import ConfigError, unreadable
from lapse.base.properties import read_properties
from lapse.spark.session.security import SECRET, holds_secret, is_on_this_machine

# What a session of ours is made of.
OURS: Mapping[str, str] = {
    "spark.master": "--master says it",
    "spark.remote": "--master says it",
    "spark.api.mode": "--master says it",
    "spark.python.daemon.module": "workers begin with the kernels loaded",
    "spark.python.unix.domain.socket.dir": "it is a folder of the session's own",
    "spark.scheduler.mode": "rounds with a deadline go first",
    "spark.scheduler.allocation.file": "rounds with a deadline go first",
    "spark.sql.catalogImplementation": "there is no catalog",
}
# The least that a session may have of what keeps others out.
_SAFE: Mapping[str, str] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.ui.killEnabled": "false",
    "spark.master.rest.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}
_REDACTED = "spark.redaction.regex"
_ADDRESSES = ("spark.driver.bindAddress", "spark.driver.host")


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """What `spark-defaults.conf` says, where Spark itself looks for it.

    Raises ConfigError, StorageError.
    """
    home = environment.get("SPARK_HOME") or _find_spark_home()
    folder = environment.get("SPARK_CONF_DIR") or f"{home}/conf"
    path = Path(folder) / "spark-defaults.conf"
    try:
        found = read_properties(path)
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: is not UTF-8: {e}") from e
    except OSError as e:
        raise unreadable(e, path) from e
    return {name: text for name, text in found.items() if name.startswith("spark.")}


def that_win(master: str, said: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """What is in force of them; raises ConfigError for what was `said` and may not be."""
    for name, text in said.items():
        _check(master, name, text)
    mine = {*OURS, *_SAFE, *(_ADDRESSES if is_on_this_machine(master) else ())}
    return {
        name: text
        for name, text in {**defaults, **said}.items()
        if name not in mine and not holds_secret(name) and not _shows_secret(name, text)
    }


def _check(master: str, name: str, text: str) -> None:
    if not name.startswith("spark."):
        raise ConfigError(f"--conf {name}: is no setting of Spark's")
    if name in OURS:
        raise ConfigError(f"--conf {name}: is ours to say: {OURS[name]}")
    if holds_secret(name):
        raise ConfigError(
            f"--conf {name}: everybody on this machine sees a command line; put it into "
            "spark-defaults.conf, in a folder that SPARK_CONF_DIR names"
        )
    if _shows_secret(name, text):
        raise ConfigError(f"--conf {name}={text}: must match {SECRET}, or pages and logs show it")
    if name in _SAFE and text != _SAFE[name]:
        raise ConfigError(f"--conf {name}={text}: allowed is {_SAFE[name]} (docs/security.md)")
    if name in _ADDRESSES and is_on_this_machine(master) and not _is_loopback(text):
        raise ConfigError(
            f"--conf {name}={text}: with {master} nobody else needs to reach it: allowed are "
            "addresses of this machine alone, as 127.0.0.1"
        )


def _shows_secret(name: str, text: str) -> bool:
    """Whether the session's own secret would be on Spark's pages and in its event log."""
    if name != _REDACTED:
        return False
    try:
        return re.search(text, SECRET) is None
    except re.error:  # Java may take it; who knows
        return True


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return text == "localhost"
