"""`lapse topic` for who may do little; what it does is in tests/compat/test_topic_command.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.security.acls import Operation, ResourceType
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS, address_of, allow, client_file, set_acls


async def test_who_may_not_see_settings_sees_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = client_file(tmp_path / "client.properties", "alice")
    async with running_node(tmp_path / "data", WITH_ACLS) as node:
        await create(node, "t", cleanup_policy="compact")
        where = address_of(node)
        known = ["--bootstrap-server", f"{where.host}:{where.port}"]
        known += ["--command-config", str(config)]
        words = ["topic", "describe", "t", *known]
        assert await asyncio.to_thread(main, words) == 3, "nothing at all"
        assert "TOPIC_AUTHORIZATION_FAILED" in capsys.readouterr().err
        await set_acls(node, [allow(Operation.DESCRIBE, ResourceType.TOPIC, "t")])
        assert await asyncio.to_thread(main, words) == 0
        assert "settings of t: not for you to see (DESCRIBE_CONFIGS)" in capsys.readouterr().out
        assert await asyncio.to_thread(main, [*words, "--json"]) == 0
        [row] = map(json.loads, capsys.readouterr().out.splitlines())
        assert (row["log_end_offset"], row["settings"]) == (0, None)
        await set_acls(node, [allow(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "t")])
        assert await asyncio.to_thread(main, words) == 0
        assert "  cleanup.policy=compact\n" in capsys.readouterr().out
