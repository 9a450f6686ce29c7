"""What commands share that talk to a broker as Kafka's own tools do: options, settings, tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import ConfigError, StorageError
from lapse.base.properties import read_properties
from lapse.base.typed import whole
from lapse.client.admin import TIMEOUT_MS
from lapse.client.login import Login, login

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
BOOTSTRAP, CONFIG = "LAPSE_BOOTSTRAP_SERVER", "LAPSE_COMMAND_CONFIG"  # of the environment
_OWN_CONFIG = Path("lapse") / "client.properties"  # below where a user's settings are
_ADDRESS = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class Connection:
    """Which brokers, and how to reach them.

    Attributes:
        properties: as Kafka's clients name them.
    """

    bootstrap: str
    properties: Mapping[str, str]

    @property
    def login(self) -> Login:
        """Raises ConfigError, StorageError."""
        return login(self.properties)


def add_remote(parser: argparse.ArgumentParser) -> None:
    """`--bootstrap-server` and `--command-config`."""
    parser.add_argument(
        "--bootstrap-server", metavar="HOST:PORT,…",
        help=f"brokers to ask first (default: ${BOOTSTRAP}, else what the file says, else "
        f"{BOOTSTRAP_DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE",
        help="a client's properties: security.protocol, ssl.*, sasl.*, request.timeout.ms "
        f"(default: ${CONFIG}, else ~/.config/{_OWN_CONFIG} if it is there)",
    )  # fmt: skip


def connection(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Connection:
    """Of `add_remote`: what is said counts before the environment, and that before the file.

    Raises StorageError where the file cannot be read.
    """
    properties = said_properties(args.command_config, environment)
    said = args.bootstrap_server or environment.get(BOOTSTRAP) or properties.get(_ADDRESS)
    others = {name: text for name, text in properties.items() if name != _ADDRESS}
    return Connection(said or BOOTSTRAP_DEFAULT, others)


def said_properties(
    said: Path | Mapping[str, str] | None, environment: Mapping[str, str] = os.environ
) -> Mapping[str, str]:
    """A client's properties: of the file that counts, or themselves.

    Who runs a command in its own process may hand them over so, and no file has its secrets.
    Raises StorageError where the file cannot be read.
    """
    if isinstance(said, Mapping):
        return said
    return client_properties(config_file(said, environment))


def config_file(said: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Which file of a client's properties counts; None: there is none."""
    if said is not None or environment.get(CONFIG):
        return said or Path(environment[CONFIG])
    home = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = Path(home) / _OWN_CONFIG
    return own if os.path.isfile(own) else None  # not everybody has a home, or may look into it


def client_properties(path: Path | None) -> Mapping[str, str]:
    """`--command-config`; raises StorageError where it cannot be read."""
    if path is None:
        return {}
    try:
        return read_properties(path)
    except OSError as e:
        raise StorageError(f"{path}: {e.strerror}") from e


def request_timeout_ms(properties: Mapping[str, str]) -> int:
    """`request.timeout.ms`, 30 s without one; raises ConfigError."""
    text = properties.get("request.timeout.ms", str(TIMEOUT_MS))
    found = whole(text)
    if found is None or not 0 < found < 1 << 31:
        raise ConfigError(f"request.timeout.ms={text}: allowed is a number of milliseconds above 0")
    return found


def settings_given(pairs: Iterable[str]) -> dict[str, str]:
    """Of KEY=VALUE; raises ConfigError."""
    given = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--config {pair}: allowed is KEY=VALUE")
        given[key] = value
    return given
