"""What a connection may do is asked once, and only so much of it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.broker.fast import permissions
from lapse.broker.fast.led_topics import LedTopics
from lapse.broker.request.context import Session
from lapse.security.acls import Operation, ResourceType
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS, allow, set_acls


async def test_of_many_topics_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "KEPT_MAX", 2)
    async with running_node(tmp_path, WITH_ACLS) as node:
        services = node.services
        await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t1", user="bob")])
        session = Session("127.0.0.1:1", "127.0.0.1", services.entrances[0], certified="User:bob")
        topics = LedTopics(services)
        for name in ("t0", "t1", "t2"):
            await create(node, name)
        for _ in range(2):
            for name in ("t0", "t1", "t2"):
                topic = topics.of(name.encode())
                assert topic is not None
                may = permissions.may(services, session, Operation.READ, topic)
                assert may == (name == "t1")
                assert session.allowed is not None
                assert len(session.allowed[1]) <= 2
