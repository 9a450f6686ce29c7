"""A broker's listeners, their protocols and advertised addresses, from the settings.

    listeners=PLAINTEXT://127.0.0.1:9092,CLIENTS://:9094
    listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL
    advertised.listeners=PLAINTEXT://127.0.0.1:9092,CLIENTS://kafka.example:443

`server.properties` is read as is, so listeners of Kafka's controllers may stand there: those of
`controller.listener.names` are passed over. An empty host means all addresses, as in Kafka. Names
count in upper case; each has one listener.

`advertised.listeners` follows Kafka's rules: its names must be in `listeners`, 0.0.0.0 is refused
because no client can connect to it, port 0 stands for the port that is listened at. An empty host
stands for the address that the client reached, where Kafka asks the system for a name. A client of
a listener that `advertised.listeners` leaves out gets no brokers.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.base.security_settings import PROTOCOLS

_LISTENER = re.compile(
    r"(?P<name>[\w.-]+)://(?P<host>\[[0-9a-fA-F:]+\]|[^:/\[\]]*):(?P<port>\d{1,5})"
)
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  (only where the configuration says so)
ANY_ADDRESS = frozenset({_ALL_ADDRESSES, "::"})
UNROUTABLE = frozenset({_ALL_ADDRESSES, "[::]"})
_ALLOWED = "NAME://HOST:PORT, or more of them"


class Protocol(Enum):
    """Kafka's security protocols: whether there is TLS, whether there is SASL."""

    PLAINTEXT = (False, False)
    SSL = (True, False)
    SASL_PLAINTEXT = (False, True)
    SASL_SSL = (True, True)

    @property
    def has_tls(self) -> bool:
        return self.value[0]

    @property
    def has_sasl(self) -> bool:
        return self.value[1]


@dataclass(slots=True)
class Address:
    """Where a listener listens; the port is known once it does."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener.

    Attributes:
        advertised: the address that clients get; None: the address it listens at.
        is_advertised: whether clients get an address at all.
    """

    name: str
    protocol: Protocol
    address: Address = field(default_factory=lambda: Address("127.0.0.1"))
    advertised: Address | None = None
    is_advertised: bool = True

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def kafka_listeners(config: BrokerConfig) -> tuple[Listener, ...]:
    """The listeners for Kafka clients, in order; raises ConfigError."""
    protocols = _protocols(config)
    found = _addresses(config, "listeners", config.listeners)
    for name in found:
        if name not in protocols:
            raise ConfigError(
                f"listeners={config.listeners}: listener.security.protocol.map says nothing of "
                f"{name}"
            )
    advertised = _advertised(config, found)
    return tuple(
        Listener(
            name,
            protocols[name],
            address,
            advertised.get(name),
            not advertised or name in advertised,
        )
        for name, address in found.items()
    )


def broker_listener(config: BrokerConfig, listeners: Sequence[Listener]) -> Listener:
    """The one by which brokers reach each other; raises ConfigError."""
    name = config.inter_broker_listener_name.strip().upper()
    protocol = config.security_inter_broker_protocol.strip().upper()
    if name and protocol:
        raise ConfigError(
            f"inter.broker.listener.name={name} and security.inter.broker.protocol={protocol}: "
            "allowed is one of them"
        )
    for one in listeners:
        if name in {"", one.name} and protocol in {"", one.protocol.name}:
            return one
    setting, value = (
        ("security.inter.broker.protocol", protocol)
        if protocol
        else ("inter.broker.listener.name", name)
    )
    names = ", ".join(f"{one.name} ({one.protocol.name})" for one in listeners)
    raise ConfigError(f"{setting}={value}: listeners has {names}")


def reached_at(listeners: Sequence[Listener]) -> dict[str, tuple[str, int]]:
    """Host and port by the listeners' names, as other brokers and their clients get them."""
    found = {}
    for one in listeners:
        address = one.advertised or one.address
        host = socket.gethostname() if address.host in ANY_ADDRESS else address.host
        found[one.name] = (host, address.port or one.address.port)
    return found


def _addresses(config: BrokerConfig, setting: str, value: str) -> dict[str, Address]:
    """The addresses in a setting by listener name, without the controllers' listeners."""
    controllers = _names(config.security.controller_listener_names)
    found: dict[str, Address] = {}
    for text in value.split(","):
        match = _LISTENER.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ConfigError(f"{setting}={value}: allowed is {_ALLOWED}")
        name = match["name"].upper()
        if name in controllers:
            continue
        if name in found:
            raise ConfigError(f"{setting}={value}: {name} is there more than once")
        found[name] = Address(match["host"].strip("[]") or _ALL_ADDRESSES, int(match["port"]))
    if not found:
        raise ConfigError(f"{setting}={value}: none of them is for clients")
    return found


def _advertised(config: BrokerConfig, listeners: Mapping[str, Address]) -> dict[str, Address]:
    """The advertised addresses by listener name; empty where the setting is not set."""
    setting, value = "advertised.listeners", config.advertised_listeners
    if not value.strip():
        return {}
    if any(match["host"] in UNROUTABLE for match in _LISTENER.finditer(value)):
        raise ConfigError(f"{setting}={value}: no client can connect to 0.0.0.0; name a host")
    advertised = _addresses(config, setting, value)
    if unknown := advertised.keys() - listeners.keys():
        raise ConfigError(
            f"{setting}={value}: {', '.join(sorted(unknown))} must be among listeners, which has "
            f"{', '.join(listeners)}"
        )
    return advertised


def _protocols(config: BrokerConfig) -> dict[str, Protocol]:
    text = config.security.listener_security_protocol_map
    protocols: dict[str, Protocol] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = pair.partition(":")
        if protocol.strip().upper() not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map={text}: allowed is NAME:PROTOCOL, and protocols "
                f"are {', '.join(PROTOCOLS)}"
            )
        protocols[name.strip().upper()] = Protocol[protocol.strip().upper()]
    return protocols


def _names(text: str) -> frozenset[str]:
    return frozenset(part.strip().upper() for part in text.split(",") if part.strip())


def http_address(config: BrokerConfig) -> Address | None:
    """The address of health and metrics, on the first one's host; None where it is switched off."""
    if config.http_port < 0:
        return None
    return Address(kafka_listeners(config)[0].address.host, config.http_port)
