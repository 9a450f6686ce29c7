"""A ZooKeeper server from the jars that pyspark brings, for clusters on one machine.

Nothing is downloaded. It listens at the loopback address alone, without an admin server.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import Fs, make_private_dir
from lapse.base.properties import properties_text
from lapse.base.secret import Secret

TICK_MS = 500  # a session may be as short as two, and is looked at once a tick
CONFIG = "zoo.cfg"
LOGIN, LOGIN_BYTES = "login", 24
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """One server with its data directory, on a port of the loopback address.

    Attributes:
        more: settings of ZooKeeper's beyond those that it needs.
    """

    data: Path
    port: int
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def connect(self) -> str:
        """For `zookeeper.connect`."""
        return f"127.0.0.1:{self.port}"

    def prepare(self, fs: Fs) -> None:
        """Write its settings. Raises StorageError."""
        fs.make_dir(self.data)
        make_private_dir(self.data)  # Java's files are for everybody, and have credentials
        settings = {
            "tickTime": str(TICK_MS), "dataDir": str(self.data), "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1", "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok", "maxClientCnxns": "0",
            "autopurge.snapRetainCount": "3", "autopurge.purgeInterval": "1",  # hours
        }  # fmt: skip
        fs.write_file(self.data / CONFIG, properties_text({**settings, **self.more}))

    def command(self, environ: Mapping[str, str] = os.environ) -> Sequence[str]:
        """What starts it; raises ConfigError where pyspark or Java is missing."""
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ConfigError(
                "ZooKeeper's jars are in pyspark: install lapse[spark], or name an ensemble with "
                "-c zookeeper.connect=HOST:PORT"
            )
        jars = Path(spec.origin).parent / "jars"
        from lapse.spark.session.java import find_java  # noqa: PLC0415  (not without the extra)

        java = str(find_java(environ).executable)
        return [java, "-Xmx128m", "-cp", f"{jars}/*", _MAIN, str(self.data / CONFIG)]

    def answers(self) -> bool:
        """Whether it serves by now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as asked:
                asked.sendall(b"ruok")
                return asked.recv(4) == b"imok"
        except OSError:
            return False


def own_login(zookeeper: Path, fs: Fs) -> Secret:
    """What brokers log in by at the server in this directory, which all users of the machine reach.

    Made at the first start; its owner alone may read it. Raises StorageError.
    """
    path = zookeeper / LOGIN
    try:
        return Secret(path.read_text().strip())
    except FileNotFoundError:
        made = Secret(f"lapse:{secrets.token_urlsafe(LOGIN_BYTES)}")
        fs.replace_file(path, made)
        return made
    except (OSError, UnicodeDecodeError) as e:
        raise StorageError(f"{path}: {e}") from e


def free_port() -> int:
    """A port of the loopback address that nobody has just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
