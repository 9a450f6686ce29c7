"""The settings of `lapse up`: the user's file, what the command line says, and what is in force.

`DIR/server.properties` is the user's. Where there is none it is written once a first start has
served, with the defaults alone: what the command line said was for that start. The children read
`DIR/lapse-up.properties`, made anew at each start: the settings in force, as they were given, where
port 0 became the port that was really taken. There are passwords in it; only its owner reads it.

**A restarted broker never has weaker settings than the one that was started**, or it is not
started: `weaker` compares what it would read with what the first one had, before each restart.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.config import BrokerConfig, broker_config, broker_setting, overlaid
from lapse.base.errors import ConfigError
from lapse.base.fs import Fs
from lapse.base.log_dirs import log_dirs
from lapse.base.properties import properties_text, server_properties
from lapse.base.secret import Secret
from lapse.broker.access.listeners import Listener, kafka_listeners
from lapse.metadata.foreign import refuse_foreign

SETTINGS = "server.properties"
RUNNING = "lapse-up.properties"
KAFKA_PORT, HTTP_PORT = 9092, 9093

_PORT = re.compile(r"(?P<before>\s*(?P<name>[\w.-]+)://.*:)(?P<port>\d+)(?P<after>\s*)")


@dataclass(frozen=True, slots=True)
class Said:
    """What counts before the file: settings by name, and the port of `--port`."""

    settings: Mapping[str, str]
    port: int | None = None

    def over(self, below: Mapping[str, str]) -> dict[str, str]:
        """These settings over those; raises ConfigError where `--port` could mean several."""
        settings = overlaid(below, self.settings)
        if self.port is None:
            return settings
        listeners = settings["listeners"]
        names = [one.name for one in kafka_listeners(broker_config(settings))]
        if len(names) > 1:
            raise ConfigError(
                f"--port {self.port}: allowed where there is one listener; listeners={listeners} "
                "has more, each with its own port"
            )
        settings["listeners"] = with_ports(listeners, {names[0]: self.port}, lambda _: True)
        return settings


@dataclass(slots=True)
class Settings:
    """The settings of a data directory.

    Attributes:
        in_force: as given; ports are filled in once they are known.
    """

    fs: Fs
    data: Path
    said: Said
    in_force: dict[str, str] = field(default_factory=dict)
    _started: BrokerConfig | None = None

    @property
    def running_path(self) -> Path:
        return self.data / RUNNING

    def prepare(self) -> None:
        """Read the user's file, if there is one; write what is in force.

        Raises ConfigError, before anything is written, and StorageError.
        """
        path = self.data / SETTINGS
        given = server_properties(path) if path.exists() else {}
        self.in_force = self.said.over({**self._first_settings(), **given})
        config = broker_config(self.in_force)
        kafka_listeners(config)
        if log_dirs(config)[0].absolute() != self.data:
            raise ConfigError(
                f"log.dirs={config.log_dirs} in {path}: allowed is a list that begins with "
                f"{self.data}, the directory of --data"
            )
        refuse_foreign(log_dirs(config), config.zookeeper_connect)
        self.fs.make_dir(self.data)
        self._write()

    def _first_settings(self) -> dict[str, str]:
        return {
            "node.id": "1",
            "log.dirs": str(self.data),
            "listeners": f"PLAINTEXT://127.0.0.1:{KAFKA_PORT}",
            "lapse.http.port": str(HTTP_PORT),
        }

    def take_ports(self, kafka: Mapping[str, int], http: int | None) -> None:
        """A broker serves, at these ports by listener: a restarted one must come back to them."""
        if self._started is None:
            self._started = broker_config(self.in_force)
            if not (self.data / SETTINGS).exists():
                text = properties_text(self._first_settings(), _FIRST)
                self.fs.replace_file(self.data / SETTINGS, text)
        listeners = with_ports(self.in_force["listeners"], kafka, lambda port: port == 0)
        self.in_force["listeners"] = listeners
        if http is not None:
            self.in_force["lapse.http.port"] = str(http)
        self._write()

    def before_restart(self) -> str:
        """Why the broker may not start again: it would be weaker. "" is that it may.

        Raises StorageError where its file is not as it should be, and cannot be written.
        """
        self._write()
        if self._started is None:
            return ""
        found = weaker(self._started, broker_config(server_properties(self.running_path)))
        return "; ".join(found)

    def _write(self) -> None:
        """Have the file in force; a full disk does not matter to one that is."""
        path = self.running_path
        wanted = properties_text(dict(sorted(self.in_force.items())), _RUNNING)
        if not _holds(path, wanted):
            self.fs.replace_file(path, wanted)


def _holds(path: Path, wanted: Secret) -> bool:
    try:
        is_private = stat.S_IMODE(path.stat().st_mode) == _PRIVATE
        return is_private and wanted.matches(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return False


_PRIVATE = 0o600
_FIRST = "Settings of this Lapse, by Kafka's names; `lapse up` reads them at its start."
_RUNNING = f"Written by `lapse up` at each start; change {SETTINGS} instead."


def with_ports(listeners: str, ports: Mapping[str, int], wanted: Callable[[int], bool]) -> str:
    """`listeners` as it is, except for ports: those of `ports`, by name, where one is wanted.

    Listeners that `ports` does not name, of Kafka's controllers say, stay as they are.
    """

    def one(text: str) -> str:
        found = _PORT.fullmatch(text)
        if found is None or not wanted(int(found["port"])):
            return text
        port = ports.get(found["name"].upper())
        return text if port is None else f"{found['before']}{port}{found['after']}"

    return ",".join(map(one, listeners.split(",")))


def weaker(start: BrokerConfig, restart: BrokerConfig) -> tuple[str, ...]:
    """What would let in somebody whom the start kept out, a line each; none: the restart may be.

    Of users, certificates and the like no order is known: there any difference counts as weaker.
    No line has a value of such a setting.
    """
    found = list(_weaker_listeners(start, restart))
    was, now = start.security, restart.security
    for name, is_weaker in _ORDERED.items():
        field_name = broker_setting(name).field
        if is_weaker(getattr(was, field_name), getattr(now, field_name)):
            found.append(f"{name} is weaker")
    opaque = (was.properties.keys() | now.properties.keys()) - _ORDERED.keys() - _OF_LISTENERS
    found += [
        f"{name} is another"
        for name in sorted(opaque)
        if was.properties.get(name, _NOTHING) != now.properties.get(name, _NOTHING)
    ]
    return tuple(found)


def _weaker_listeners(start: BrokerConfig, restart: BrokerConfig) -> list[str]:
    before: dict[str, Listener] = {one.name: one for one in kafka_listeners(start)}
    lines = []
    for one in kafka_listeners(restart):
        was = before.get(one.name)
        if was is None:
            lines.append(f"listener {one.name} is new")
        elif one.protocol.has_tls < was.protocol.has_tls:
            lines.append(f"listener {one.name} has no TLS any more")
        elif one.protocol.has_sasl < was.protocol.has_sasl:
            lines.append(f"listener {one.name} requires no SASL any more")
        elif one.address.host != was.address.host:
            lines.append(f"listener {one.name} is at another address")
    return lines


def _parts(text: str, separator: str) -> set[str]:
    return {part.strip() for part in text.split(separator) if part.strip()}


_NOTHING = Secret("")
_OF_LISTENERS = {"listener.security.protocol.map", "controller.listener.names"}
_LOGINS = ("none", "auto", "required")
# By setting: whether the second value is weaker than the first.
_ORDERED: dict[str, Callable[..., bool]] = {
    "sasl.enabled.mechanisms": lambda was, now: not _parts(now, ",") <= _parts(was, ","),
    "authorizer.class.name": lambda was, now: was != now,
    "super.users": lambda was, now: not _parts(now, ";") <= _parts(was, ";"),
    "allow.everyone.if.no.acl.found": lambda was, now: now and not was,
    "connections.max.reauth.ms": lambda was, now: bool(was) and (now == 0 or now > was),
    "connection.failed.authentication.delay.ms": lambda was, now: now < was,
    "lapse.login.failures.per.minute": lambda was, now: bool(was) and (now == 0 or now > was),
    "lapse.http.protocol": lambda was, now: (was, now) == ("https", "http"),
    "lapse.http.login": lambda was, now: _LOGINS.index(now) < _LOGINS.index(was),
}
