"""The error text for a round that ran out of disk space: the reason and what to do about it.

A round writes new segments beside the old ones, and the old ones are deleted only when the new ones
are in place: it needs space before it frees space.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from lapse.lifecycle.round.plan import RoundPlan

_NEEDS = "a round needs room for what it keeps of the log, here up to {mib:.1f} MiB, until it is in"
_WHAT_TO_DO: Mapping[int, str] = {
    errno.ENOSPC: f"{_NEEDS}: free some on this disk, the round is tried again",
    errno.EDQUOT: f"{_NEEDS}: the quota of this user on this disk is too small",
    errno.EFBIG: "files of this process may not grow as large: see its limit (ulimit -f)",
}


def in_words(plan: RoundPlan, error: Exception) -> str:
    """Why a round failed, and what to do if the disk was full."""
    text = f"{plan.name}: {error}"
    cause: BaseException | None = error
    while cause is not None:
        hint = _WHAT_TO_DO.get(cause.errno or 0) if isinstance(cause, OSError) else None
        if hint is not None:
            return f"{text}; {hint.format(mib=plan.bytes_to_read / (1 << 20))}"
        cause = cause.__cause__
    return text
