"""Metrics of orders of erasure that `lapse.erase.orders.dir` has: open, late, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from lapse.base.errors import StorageError
from lapse.lifecycle.outlook.erasures import Erasure, Erasures

_ORDERS = "Orders of erasure: open, proven, or unreadable (or the folder of all is)."
_OLDEST = "Seconds since the oldest open order of erasure was given; 0: none is open."
_OVERDUE = "By how much the worst open order of erasure has missed its deadline; 0: none has."
# Of an order that cannot be read, the two go by what was read of it last.


def erasure_metrics(erasures: Erasures, now_ms: int) -> Iterable[Metric]:
    """By what their files say at this scrape, of all orders.

    One that can no longer be read is neither open nor proven, and as late as it was known to be.
    """
    found: Sequence[Erasure]
    unreadable = 0
    try:
        found = known = erasures.all()
    except StorageError:
        found, known, unreadable = (), erasures.last(), 1
    readable = [one for one in found if not one.trouble]
    waiting = [one for one in readable if one.done_ms is None]
    pending = [one for one in known if one.is_open]
    states = {
        "open": len(waiting),
        "proven": len(readable) - len(waiting),
        "unreadable": unreadable + len(found) - len(readable),
    }
    orders = GaugeMetricFamily("lapse_erasure_orders", _ORDERS, labels=["state"])
    for state, count in states.items():
        orders.add_metric([state], count)
    yield orders
    ages = [now_ms - one.given_ms for one in pending]
    yield _gauge("lapse_erasure_oldest_pending_seconds", _OLDEST, max(ages, default=0))
    overdue = [one.overdue_ms(now_ms) for one in pending]
    yield _gauge("lapse_erasure_overdue_seconds", _OVERDUE, max(overdue, default=0))


def _gauge(name: str, doc: str, ms: int) -> Metric:
    return GaugeMetricFamily(name, doc, value=max(ms, 0) / 1000)
