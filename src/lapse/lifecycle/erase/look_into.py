"""Whatever a file is, and whatever goes wrong with it, there is a finding about it."""

from __future__ import annotations

import logging

from lapse.base.clock import Clock
from lapse.kernels.find_key import KeyTable
from lapse.lifecycle.erase.audit import OnBytes, audit
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.rows import audit_rows
from lapse.lifecycle.erase.search import Search

logger = logging.getLogger(__name__)


def look_into(
    unit: AuditUnit, search: Search, table: KeyTable, clock: Clock, on_bytes: OnBytes
) -> Findings:
    """Look through a file. An exception is a finding, too: out of memory, say, or a bug of ours."""
    look = audit_rows if unit.rows else audit
    try:
        return look(unit, search, table, clock, on_bytes)
    except Exception as e:
        logger.exception("looking through %s of %s", unit.path, unit.replica)
        reason = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        return Findings(unit.path, problem=f"could not be looked through: {reason}")
