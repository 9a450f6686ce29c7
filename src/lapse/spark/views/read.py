"""The two ends of a view: `view_units` in the driver, `read_unit` in a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from lapse.base.clock import Clock
from lapse.spark.views.keys import key_batches, key_units
from lapse.spark.views.ledger import ledger_rows
from lapse.spark.views.logs import units_of
from lapse.spark.views.plan import plan_rows
from lapse.spark.views.schema import batches_of
from lapse.spark.views.segments import segment_rows
from lapse.spark.views.spec import KEYS, LEDGER, PLAN, SEGMENTS, ViewOptions, ViewUnit
from lapse.spark.views.wire import broker_batches, broker_units

_Reader = Callable[[ViewUnit, Clock], Iterator[pa.RecordBatch]]
_READERS: Mapping[str, _Reader] = {
    SEGMENTS: lambda unit, clock: batches_of(SEGMENTS, segment_rows(unit, clock)),
    PLAN: lambda unit, clock: batches_of(PLAN, plan_rows(unit, clock)),
    LEDGER: lambda unit, _: batches_of(LEDGER, ledger_rows(unit)),
    KEYS: key_batches,
}


def view_units(options: ViewOptions, clock: Clock) -> list[ViewUnit]:
    """Units of work, each for one task; none where no log is selected.

    Raises ConfigError on an option, StorageError where a directory cannot be listed.
    """
    options.check()
    if options.bootstrap:
        return broker_units(options)
    return key_units(options, clock) if options.view == KEYS else units_of(options)


def read_unit(unit: ViewUnit, clock: Clock) -> Iterator[pa.RecordBatch]:
    """The rows of a unit, of the view's schema (`schema.SCHEMAS`). Raises as the view's module."""
    if unit.broker is not None:
        return broker_batches(unit)
    return _READERS[unit.options.view](unit, clock)
