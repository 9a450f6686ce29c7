"""What a connection may do is asked once, and only so much of it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.broker.fast import permissions
from lapse.broker.request.context import Session
from lapse.security.acls import Operation, ResourceType
from tests.support.broker.running import running_node
from tests.support.broker.secured import WITH_ACLS, allow, set_acls

TOPIC, TRANSACTION = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


async def test_of_many_topics_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "KEPT_MAX", 2)
    async with running_node(tmp_path, WITH_ACLS) as node:
        services = node.services
        await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t1", user="bob")])
        session = Session("127.0.0.1:1", "127.0.0.1", services.entrances[0], certified="User:bob")
        for _ in range(2):
            for kind, name in [(TOPIC, "t0"), (TOPIC, "t1"), (TRANSACTION, "t1"), (TOPIC, "t2")]:
                may = permissions.may(services, session, Operation.READ, kind, name)
                assert may == ((kind, name) == (TOPIC, "t1"))
                assert session.allowed is not None
                assert len(session.allowed[1]) <= 2
