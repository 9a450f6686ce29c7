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


_FIRST_REQUESTS = """
import numpy as np
from lapse.broker.warm_up import warm_up
from lapse.kernels import fetch_frame, produce_frame
from lapse.wire.framing import FrameReader

warm_up()
kernels = produce_frame.judge, fetch_frame.parse, fetch_frame.find
print([len(kernel.signatures) for kernel in kernels])
for array in (FrameReader(100)._array, np.frombuffer(memoryview(bytearray(100)), np.uint8)):
    rows = np.empty((9, produce_frame.COLUMNS), np.int64)
    produce_frame.judge(array, 0, 50, rows)
    head = np.empty(fetch_frame.HEAD_SIZE, np.int64)
    fetch_frame.parse(array, 0, 50, head, np.empty((9, fetch_frame.COLUMNS), np.int64))
    fetch_frame.find(array, 50, 0, -1, 7)
print([len(kernel.signatures) for kernel in kernels])
"""


def test_the_first_plain_requests_find_their_kernels_loaded() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _FIRST_REQUESTS], capture_output=True, text=True, check=False
    )
    assert told.stdout.splitlines() == ["[1, 1, 1]", "[1, 1, 1]"], told.stderr


def test_nothing_is_compiled_that_an_earlier_process_has_compiled() -> None:
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
    assert told.stdout.split() == []
