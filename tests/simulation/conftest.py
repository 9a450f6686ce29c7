"""The end of a run: what simulated processes left open is nobody's to close."""

from __future__ import annotations

import gc
import sys


def pytest_sessionfinish() -> None:
    """Let go of it here, where nobody listens; pytest itself would call each a failure."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
