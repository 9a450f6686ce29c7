"""How a broker gets in at the others: by the settings of the listener that is for brokers.

`user_login` does the same for a user who has logged in at the HTTP port, with that user's password.

As in Kafka: by TLS it shows that listener's own certificate, and believes whom the listener
believes; by SASL it is who `listener.name.L.M.sasl.jaas.config` says with `username` and
`password`. At the other broker it is a user like any other, and needs ClusterAction on the cluster
and more: make it one of `super.users`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.broker.access.authentication import MECHANISMS, given_properties
from lapse.broker.access.listeners import Listener
from lapse.client.login import Login, sasl_login
from lapse.security.jaas import User, login_of, server_login_module
from lapse.security.tls import client_context, listener_properties, tls_settings

MECHANISM = "sasl.mechanism.inter.broker.protocol"


def broker_login(config: BrokerConfig, listener: Listener) -> Login:
    """For one connection; reads key and certificates, which may be new ones.

    Raises:
        ConfigError: names the listener and the setting.
    """
    try:
        given = given_properties(config.security)
        context = _tls(given, listener)
        if not listener.protocol.has_sasl:
            return Login(context)
        mechanism = config.sasl_mechanism_inter_broker_protocol
        if mechanism not in MECHANISMS:
            raise ConfigError(f"{MECHANISM}={mechanism}: allowed is one of {', '.join(MECHANISMS)}")
        who = login_of(server_login_module(given, listener.name, mechanism), mechanism)
        return sasl_login(context, mechanism, who)
    except ConfigError as e:
        raise ConfigError(
            f"listener {listener.name}, by which brokers reach each other: {e}"
        ) from e


def user_login(config: BrokerConfig, listener: Listener, mechanism: str, who: User) -> Login:
    """For a user; reads certificates. Raises ConfigError as `broker_login`."""
    try:
        context = _tls(given_properties(config.security), listener)
    except ConfigError as e:
        raise ConfigError(f"listener {listener.name}, by which pages ask brokers: {e}") from e
    return sasl_login(context, mechanism, who)


def _tls(given: Mapping[str, str], listener: Listener) -> ssl.SSLContext | None:
    if not listener.protocol.has_tls:
        return None
    return client_context(tls_settings(listener_properties(given, listener.name)))
