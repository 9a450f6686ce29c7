"""What is wrong is said when `lapse lifecycle` starts, not when the first round is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.cli.lifecycle import LifecycleProcess


@pytest.mark.parametrize("idle_ms", ["0", "600000"])
def test_what_is_no_master_is_refused_before_anything_is_due(tmp_path: Path, idle_ms: str) -> None:
    """No broker is there either: nothing waits for it."""
    settings = {"log.dirs": str(tmp_path), "lapse.lifecycle.master": "mesos://there:1"}
    config = broker_config({**settings, "lapse.lifecycle.idle.ms": idle_ms})
    with pytest.raises(ConfigError, match="is no Spark master"):
        LifecycleProcess(config, "spark").run()
