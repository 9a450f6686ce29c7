"""What a broker does before its first client: kernels come from their cache, none is compiled."""

from __future__ import annotations

import subprocess
import sys

_COMPILED = """
from numba.core import event

class Compiled(event.Listener):
    def on_start(self, event):
        print(event.data["dispatcher"].__name__)

    def on_end(self, event):
        pass

event.register("numba:compile", Compiled())
from lapse.broker.warm_up import warm_up
warm_up()
"""


def test_nothing_is_compiled_that_an_earlier_process_has_compiled() -> None:
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
    assert told.stdout.split() == []
