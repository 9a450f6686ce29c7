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

from lapse.base.errors import ConfigError, unreadable
from lapse.spark.session.security import holds_secret, is_on_this_machine

# What a session of ours is made of.
OURS: Mapping[str, str] = {
    "spark.master": "--master says it",
    "spark.python.daemon.module": "workers begin with the kernels loaded",
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
_ADDRESSES = ("spark.driver.bindAddress", "spark.driver.host")
_LINE = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]\s*(.*?)\s*")


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """What `spark-defaults.conf` says, where Spark itself looks for it.

    Raises ConfigError, StorageError.
    """
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    if not folder:
        return {}
    path = Path(folder) / "spark-defaults.conf"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: is not UTF-8: {e}") from e
    except OSError as e:
        raise unreadable(e, path) from e
    found = (_LINE.fullmatch(line) for line in lines)
    return {one[1]: one[2] for one in found if one and one[1].startswith("spark.")}


def that_win(master: str, said: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """What is in force of them; raises ConfigError for what was `said` and may not be."""
    for name, text in said.items():
        _check(master, name, text)
    mine = {*OURS, *_SAFE, *_ADDRESSES} if is_on_this_machine(master) else {*OURS, *_SAFE}
    return {n: text for n, text in {**defaults, **said}.items()
            if n not in mine and not holds_secret(n)}  # fmt: skip


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
    if name in _SAFE and text != _SAFE[name]:
        raise ConfigError(f"--conf {name}={text}: allowed is {_SAFE[name]} (docs/security.md)")
    if name in _ADDRESSES and is_on_this_machine(master) and not _is_loopback(text):
        raise ConfigError(
            f"--conf {name}={text}: with {master} nobody else needs to reach it: allowed are "
            "addresses of this machine alone, as 127.0.0.1"
        )


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return text == "localhost"
