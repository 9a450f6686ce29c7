"""The demo's house: what does not start is not left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lapse.demo import house
from lapse.demo.house import House, NotShown

ANOTHER = """
import os, sys, time
with open(sys.argv[sys.argv.index("--data") + 1] + ".pid", "w") as f:
    f.write(str(os.getpid()))
print("not ready", flush=True)
time.sleep(600)
"""


def test_what_does_not_start_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "LAPSE", (sys.executable, "-c", ANOTHER))
    with pytest.raises(NotShown, match="did not start"):
        House(tmp_path / "data", [])
    pid = int((tmp_path / "data.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
