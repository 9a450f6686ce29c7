"""Another broker that does not let this one in: no client takes that for its own login."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.broker.logs.members import Members
from lapse.broker.replicas.peers import NotLetIn, Peers
from lapse.client.login import Login, login
from lapse.metadata.membership import Registration
from tests.support.broker.running import running_node
from tests.support.broker.secured import SECURED, address_of

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "


def as_admin(password: str) -> Login:
    return login({
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN}username="admin" password="{password}";',
    })  # fmt: skip


def no_certificate() -> Login:
    raise ConfigError("ssl.keystore.location: there is no such file")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda: as_admin("x"), "Authentication failed"),
        (no_certificate, "ssl.keystore.location"),
    ],
)
async def test_what_is_wrong_with_its_own_login(
    tmp_path: Path, how: Callable[[], Login], why: str
) -> None:
    async with running_node(tmp_path, SECURED) as node:
        address, members = address_of(node), Members(1)
        members.brokers = {2: Registration(2, {"B": (address.host, address.port)})}
        peers = Peers(members, "B", SystemClock(), how)
        with pytest.raises(NotLetIn, match=why) as refused:
            await peers.connect(2)
        assert not refused.value.sent
        assert f"broker 2 at {address}" in str(refused.value)
        let_in = Peers(members, "B", SystemClock(), lambda: as_admin("a"))
        (await let_in.connect(2)).close()
