"""What is wrong is said when `lapse lifecycle` starts, not when the first round is due."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.cli.lifecycle import LifecycleProcess
from lapse.cli.served_brokers import NearBrokers


@pytest.mark.parametrize("idle_ms", ["0", "600000"])
def test_what_is_no_master_is_refused_before_anything_is_due(tmp_path: Path, idle_ms: str) -> None:
    """No broker is there either: nothing waits for it."""
    settings = {"log.dirs": str(tmp_path), "lapse.lifecycle.master": "mesos://there:1"}
    config = broker_config({**settings, "lapse.lifecycle.idle.ms": idle_ms})
    with pytest.raises(ConfigError, match="is no Spark master"):
        LifecycleProcess(config, NearBrokers([config]), "spark").run()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_signal_between_two_engines_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """The process would begin again, and know nothing of it."""
    begun: list[int] = []
    monkeypatch.setattr("lapse.cli.lifecycle.begin_again", begun.append)

    def ends(self: LifecycleProcess) -> int:
        self._listen()
        if is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(LifecycleProcess, "_run_on_spark", ends)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        config = broker_config({"log.dirs": str(tmp_path)})
        LifecycleProcess(config, NearBrokers([config]), "spark").run()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert begun == ([] if is_stopped else [0])
