"""Another user of this machine, who tries things."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user for a while"
)


def as_neighbour(tries: Callable[[], Any]) -> Any:
    """What `tries` gives back, called in a child that is `nobody`; JSON goes between."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read_end)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with os.fdopen(write_end, "w") as f:
                json.dump(tries(), f)
            code = 0
        except BaseException:  # noqa: BLE001  (the parent's tests must not go on here)
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as f:
        said = f.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the neighbour died, see above"
    return json.loads(said)


def why_not(does: Callable[[], Any]) -> str:
    """The error's name, or "" where it worked."""
    try:
        does()
    except OSError as e:
        return type(e).__name__
    return ""
