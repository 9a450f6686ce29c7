"""What is no address is refused before anybody is asked; compat/test_zookeeper has a real one."""

from __future__ import annotations

import pytest

from lapse.base.errors import ConfigError
from lapse.metadata.zookeeper import ZooKeeperTree
from lapse.testing.clock import ManualClock


@pytest.mark.parametrize(
    "connect",
    ["a:b", "h:99999", "h:-1", "/path", "h:1,", "h:1//x", "h:1/a/../b", "h:1/.", "h:1/a//b"],
)
def test_what_is_no_address_is_refused_in_one_line(connect: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ZooKeeperTree(connect, 1000, 1000, ManualClock(0))
    assert str(refused.value).startswith(f"zookeeper.connect={connect}: ")
    assert str(refused.value).endswith("allowed is HOST:PORT,HOST:PORT/PATH")
