"""What a request of the fast path ends in that turns out not to be for it, after it has waited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftOver:
    """The readable path is to answer it; nothing of it is done."""

    frame: memoryview
