"""How a broker gets in at the others: by the settings of the listener that is for brokers.

As in Kafka: by TLS it shows that listener's own certificate, and believes whom the listener
believes; by SASL it is who `listener.name.L.M.sasl.jaas.config` says with `username` and
`password`. At the other broker it is a user like any other, and needs ClusterAction on the cluster
and more: make it one of `super.users`.
"""

from __future__ import annotations

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.broker.access.authentication import MECHANISMS, given_properties
from lapse.broker.access.listeners import Listener
from lapse.client.login import Login, sasl_login
from lapse.security.jaas import login_of, server_login_module
from lapse.security.tls import client_context, listener_properties, tls_settings

MECHANISM = "sasl.mechanism.inter.broker.protocol"


def broker_login(config: BrokerConfig, listener: Listener) -> Login:
    """For one connection; reads key and certificates, which may be new ones.

    Raises:
        ConfigError: names the listener and the setting.
    """
    try:
        given = given_properties(config.security)
        context = None
        if listener.protocol.has_tls:
            context = client_context(tls_settings(listener_properties(given, listener.name)))
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
