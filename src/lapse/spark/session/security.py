"""Authentication of a Spark session: only its own processes may talk to each other.

Spark's driver listens on TCP: for executors (RPC), for blocks, and for Python (py4j's gateway,
which requires a token). Without `spark.authenticate` any client that reaches the first two can stop
rounds and read the tasks' input. So every session sets it, with Spark's encrypted exchange
(`spark.network.crypto.enabled`). Each session on a master of this machine gets a new secret; YARN
and Kubernetes make one themselves. The master and workers of a standalone cluster share a secret,
which the user sets in `spark-defaults.conf`.

All users of a machine can read command lines, so no secret is ever on one: Java is started without
secrets and gets them afterwards.

Python's workers, its accumulators and results are reached by Unix sockets in the session's folder
(mode 0700) instead of ports, and Spark keeps its blocks there too.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import ConfigError

logger = logging.getLogger(__name__)

AUTHENTICATE, SECRET = "spark.authenticate", "spark.authenticate.secret"
_ENCRYPT = "spark.network.crypto.enabled"
_SECRET_BYTES = 32
_SOCKET_NAME_BYTES = len("/.00000000-0000-0000-0000-000000000000.sock")
_SOCKET_PATH_BYTES_MAX = 103  # macOS; Linux has four more
_STANDALONE = "spark://"
# Names that Spark hides from its own pages and logs (spark.redaction.regex).
_SECRETS = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)

_EVERYWHERE: Mapping[str, str] = {
    AUTHENTICATE: "true",
    _ENCRYPT: "true",
    "spark.ui.enabled": "false",
    "spark.ui.killEnabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}
# If all of Spark runs on this machine, no other machine and no old client needs to reach it.
_ON_THIS_MACHINE: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.master.rest.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Spark's settings: those that Java is started with, and those that it gets afterwards."""

    at_start: Mapping[str, str]
    later: Mapping[str, str]


def is_on_this_machine(master: str) -> bool:
    """Whether no other machine takes part."""
    return master.startswith("local")


def security_settings(master: str, folder: Path) -> dict[str, str]:
    """What keeps others out of a session that has `folder` to itself."""
    settings = dict(_EVERYWHERE)
    if len(bytes(folder)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES_MAX:
        settings["spark.python.unix.domain.socket.enabled"] = "false"  # ports then, with a token
    if is_on_this_machine(master):
        settings.update(_ON_THIS_MACHINE)
        settings["spark.python.unix.domain.socket.dir"] = str(folder)
        settings[SECRET] = secrets.token_hex(_SECRET_BYTES)
    if master.startswith(_STANDALONE):
        del settings[AUTHENTICATE]  # what is said in spark-defaults.conf is looked at first
    return settings


def holds_secret(name: str) -> bool:
    """Whether a setting's value is nobody else's to see."""
    return _SECRETS.search(name) is not None


def without_secrets(settings: Mapping[str, str]) -> SparkSettings:
    """What may be on a command line, and what may not."""
    hidden = {name: text for name, text in settings.items() if holds_secret(name)}
    return SparkSettings({name: settings[name] for name in settings.keys() - hidden.keys()}, hidden)


def check_cluster(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What is still to be set for a master whose secret is the user's to say.

    Args:
        master: Spark's.
        settings: all of Spark's settings, `spark-defaults.conf` included.

    Raises:
        ConfigError: the cluster has no secret, and no setting allows that.
    """
    if not master.startswith(_STANDALONE):
        return {}
    if settings.get(AUTHENTICATE) == "false":
        logger.warning(
            "%s: %s=false: whoever reaches the driver's ports can stop rounds and read what tasks "
            "are given, and whoever reaches the master's can run programs as its workers' user",
            master, AUTHENTICATE,
        )  # fmt: skip
        return {_ENCRYPT: "false"}  # Spark refuses one without the other
    if settings.get(SECRET):
        return {AUTHENTICATE: "true"}
    raise ConfigError(
        f"{master}: {SECRET} is not set, so everybody in the network could stop rounds and run "
        f"programs as Spark's user. Set {AUTHENTICATE}=true and {SECRET} in spark-defaults.conf, "
        f"here and for the cluster's master and workers; or say {AUTHENTICATE}=false there, if the "
        'network is closed (docs/cluster.md, "Who may join")'
    )
