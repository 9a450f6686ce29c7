"""Where a broker listens, from `listeners` and `lapse.http.port`.

`server.properties` is read as is, so listeners of other protocols may stand there (a controller's,
say); the first PLAINTEXT one is ours. An empty host means all addresses, as in Kafka.
"""

from __future__ import annotations

import re

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.broker.services import Address

_LISTENER = re.compile(
    r"(?P<protocol>\w+)://(?P<host>\[[0-9a-fA-F:]+\]|[^:/\[\]]*):(?P<port>\d{1,5})"
)
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  (only where the configuration says so)
_ALLOWED = "PLAINTEXT://HOST:PORT"


def kafka_address(config: BrokerConfig) -> Address:
    """The address for Kafka clients; raises ConfigError."""
    for text in config.listeners.split(","):
        found = _LISTENER.fullmatch(text.strip())
        if found is None or int(found["port"]) > 65535:
            raise ConfigError(
                f"listeners={config.listeners}: allowed is {_ALLOWED}, or more of them"
            )
        if found["protocol"] == "PLAINTEXT":
            return Address(found["host"].strip("[]") or _ALL_ADDRESSES, int(found["port"]))
    raise ConfigError(f"listeners={config.listeners}: allowed is {_ALLOWED}, at least once")


def http_address(config: BrokerConfig) -> Address | None:
    """The address of health and metrics, on the same host; None where it is switched off."""
    if config.http_port < 0:
        return None
    return Address(kafka_address(config).host, config.http_port)
