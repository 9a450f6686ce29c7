"""Settings of listeners, TLS, SASL and authorization: their rows, and what a broker makes of them.

Each may be given for one listener: `listener.name.NAME.` in front wins on that listener. So what
the properties file says is also kept as it is, every value a `Secret`: any of them may hold one (a
JAAS entry, a key). It is `broker.access.authentication` and `broker.net.authorization` that read
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lapse.base.secret import Secret
from lapse.base.setting import (
    BOOLEAN,
    INT_MAX,
    MILLISECONDS,
    PASSWORD,
    TEXT,
    Setting,
    one_of,
    whole,
)

LISTENER_PREFIX = "listener.name."
_PREFIXES = ("ssl.", "sasl.", LISTENER_PREFIX)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# What the whole broker goes by.
_OF_BROKER = (
    Setting("listener.security.protocol.map", TEXT, ",".join(f"{p}:{p}" for p in PROTOCOLS),
            "What is spoken on each listener, as NAME:PROTOCOL, separated by commas."),
    Setting("controller.listener.names", TEXT, "CONTROLLER",
            "Listeners of Kafka's controllers; they are passed over."),
    Setting("sasl.enabled.mechanisms", TEXT, "",
            "Of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or some of them."),
    Setting("connections.max.reauth.ms", MILLISECONDS, "0",
            "How long a SASL session lasts before the client must log in again (KIP-368); 0 is no "
            "end."),
    Setting("connection.failed.authentication.delay.ms", MILLISECONDS, "100",
            "How long a failed login is held back; failures of one address wait for each other."),
    Setting("authorizer.class.name", TEXT, "",
            "Kafka's StandardAuthorizer: ACLs decide who may do what. Nothing: everybody may."),
    Setting("super.users", TEXT, "",
            "Who may do everything, as User:NAME, separated by semicolons."),
    Setting("allow.everyone.if.no.acl.found", BOOLEAN, "false",
            "Whether everybody may do what they like to a resource that no ACL is about."),
    Setting("lapse.login.failures.per.minute", whole(0, INT_MAX), "20",
            "How many attempts to log in as one user from one address may fail a minute, half of "
            "them at once; an address and a user have ten times as many. Beyond that attempts "
            "wait, or are not tried. 0: any number."),
    Setting("lapse.http.protocol", one_of("http", "https"), "http",
            "What is spoken on the HTTP port; the ssl.* settings of https may be its own, with "
            "listener.name.http. in front."),
    Setting("lapse.http.login", one_of("auto", "required", "none"), "auto",
            "Whether the HTTP port requires a user and a password of the SASL listeners; auto: if "
            "there is such a listener."),
)  # fmt: skip

# What a listener with TLS goes by; `security.tls` judges them.
_OF_TLS = (
    Setting("ssl.client.auth", TEXT, "none",
            "Whether clients show a certificate: none, requested, required."),
    Setting("ssl.enabled.protocols", TEXT, "TLSv1.2,TLSv1.3", "Versions of TLS."),
    Setting("ssl.protocol", TEXT, "TLSv1.3", "The newest version of TLS."),
    Setting("ssl.keystore.type", TEXT, "JKS", "PEM is the one that can be read."),
    Setting("ssl.keystore.location", TEXT, "", "A PEM file with our key and certificates."),
    Setting("ssl.keystore.password", PASSWORD, "", "PEM has none."),
    Setting("ssl.keystore.key", PASSWORD, "", "Our key as PEM text, instead of a file."),
    Setting("ssl.keystore.certificate.chain", PASSWORD, "", "The certificates that go with it."),
    Setting("ssl.key.password", PASSWORD, "", "What our key is encrypted with."),
    Setting("ssl.truststore.type", TEXT, "JKS", "PEM is the one that can be read."),
    Setting("ssl.truststore.location", TEXT, "",
            "A PEM file with the certificates that clients' are signed with."),
    Setting("ssl.truststore.password", PASSWORD, "", "PEM has none."),
    Setting("ssl.truststore.certificates", PASSWORD, "", "Those as PEM text, instead of a file."),
    Setting("ssl.principal.mapping.rules", TEXT, "DEFAULT",
            "Which user a client's certificate names (KIP-371)."),
    Setting("ssl.endpoint.identification.algorithm", TEXT, "https",
            "Between brokers: https: a certificate must name the host; nothing: any host will do."),
)  # fmt: skip
# Settings of Kafka's that are refused, and what to do instead.
UNABLE = {
    "ssl.cipher.suites": "leave it out: OpenSSL's choice is used",
    "ssl.provider": "leave it out: OpenSSL is used",
    "ssl.engine.factory.class": "leave it out: Java classes are not loaded",
}

SECURITY_SETTINGS: tuple[Setting, ...] = (*_OF_BROKER, *_OF_TLS)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """What a broker's settings say of security.

    Attributes:
        properties: `ssl.*`, `sasl.*`, `listener.name.*` and those above, as they were given.
    """

    listener_security_protocol_map: str
    controller_listener_names: str
    sasl_enabled_mechanisms: str
    connections_max_reauth_ms: int
    connection_failed_authentication_delay_ms: int
    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    login_failures_per_minute: int
    http_protocol: str
    http_login: str
    properties: Mapping[str, Secret] = field(repr=False)

    @staticmethod
    def of(values: Mapping[str, object], given: Mapping[str, str]) -> SecurityConfig:
        """From parsed values by field, and all that the file says."""
        kept = {
            name: Secret(text)
            for name, text in given.items()
            if name in _NAMES or name.startswith(_PREFIXES)
        }
        own = {row.field: values[row.field] for row in _OF_BROKER}
        return SecurityConfig(**own, properties=kept)  # type: ignore[arg-type]


_NAMES = frozenset(row.name for row in SECURITY_SETTINGS)
_READ = frozenset({*_NAMES, *UNABLE, "sasl.mechanism.inter.broker.protocol"})
# The names of listeners have dots, too.
_OF_LISTENER = re.compile(
    rf"{re.escape(LISTENER_PREFIX)}.+\.(?:{'|'.join(map(re.escape, sorted(_READ)))}"
    r"|(?i:plain|scram-sha-256|scram-sha-512)\.sasl\.jaas\.config)"
)


def of_security(name: str) -> bool:
    """Whether a name may be one of these, known or not: `ssl.*`, `sasl.*`, `listener.name.*`."""
    return name.startswith(_PREFIXES)


def is_known(name: str) -> bool:
    """Whether one of those counts: for the broker, for a listener, or for a mechanism there."""
    return name in _READ or _OF_LISTENER.fullmatch(name) is not None
