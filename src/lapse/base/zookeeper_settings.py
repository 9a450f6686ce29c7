"""Settings of how brokers get into ZooKeeper, and who else does: login, ACLs, TLS.

Kafka's names, but for the login: Kafka's stands in a file of Java's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from lapse.base.secret import Secret
from lapse.base.setting import BOOLEAN, PASSWORD, TEXT, Setting

ZOOKEEPER_SETTINGS: tuple[Setting, ...] = (
    Setting("lapse.zookeeper.login", PASSWORD, "",
            "USER:PASSWORD for ZooKeeper's scheme digest: who has them may do what "
            "zookeeper.set.acl keeps from others. All brokers have the same."),
    Setting("zookeeper.set.acl", BOOLEAN, "false",
            "Whether what brokers keep in ZooKeeper is for those alone who log in as they do; what "
            "is there already becomes so at the start. It needs a path in zookeeper.connect."),
    Setting("zookeeper.ssl.client.enable", BOOLEAN, "false",
            "Whether ZooKeeper is reached by TLS, at its secureClientPort."),
    Setting("zookeeper.ssl.truststore.type", TEXT, "", "PEM is the one that can be read."),
    Setting("zookeeper.ssl.truststore.location", TEXT, "",
            "A PEM file with those that sign ZooKeeper's certificate."),
    Setting("zookeeper.ssl.keystore.type", TEXT, "", "PEM is the one that can be read."),
    Setting("zookeeper.ssl.keystore.location", TEXT, "",
            "A PEM file with our key and certificate, where ZooKeeper asks for one."),
    Setting("zookeeper.ssl.keystore.password", PASSWORD, "", "What that key is encrypted with."),
    Setting("zookeeper.ssl.endpoint.identification.algorithm", TEXT, "HTTPS",
            "HTTPS: ZooKeeper's certificate must name the host; nothing: any host will do."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """What a broker's settings say of it, by the names of ZOOKEEPER_SETTINGS; not judged yet."""

    zookeeper_login: Secret
    zookeeper_set_acl: bool
    zookeeper_ssl_client_enable: bool
    zookeeper_ssl_truststore_type: str
    zookeeper_ssl_truststore_location: str
    zookeeper_ssl_keystore_type: str
    zookeeper_ssl_keystore_location: str
    zookeeper_ssl_keystore_password: Secret
    zookeeper_ssl_endpoint_identification_algorithm: str

    @staticmethod
    def of(values: Mapping[str, object]) -> ZooKeeperConfig:
        """From parsed values by field."""
        own = {row.field: values[row.field] for row in ZOOKEEPER_SETTINGS}
        return ZooKeeperConfig(**own)  # type: ignore[arg-type]


assert {row.field for row in ZOOKEEPER_SETTINGS} == {f.name for f in fields(ZooKeeperConfig)}
