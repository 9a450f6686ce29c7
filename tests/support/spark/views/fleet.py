"""A log directory that rounds have been through, and views of it as rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lapse.base.clock import Clock
from lapse.cli.main import main
from lapse.spark.views.read import read_unit, view_units
from lapse.spark.views.schema import SCHEMAS
from lapse.spark.views.spec import ViewOptions, decode_unit, encode_unit
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten

Rows = list[dict[str, Any]]
SETTINGS = (
    ("cleanup.policy", "compact"), ("delete.retention.ms", "60000"),
    ("min.cleanable.dirty.ratio", "0.01"), ("max.compaction.lag.ms", "90000"),
)  # fmt: skip


def make_fleet(path: Path) -> Path:
    """Log a: 4 keys 9 times over and a tombstone, sealed; log b likewise with 3 keys."""
    pairs = [*overwritten(keys=4, times=9), ("k0", None)]
    make_logs(path, {"a": pairs, "b": overwritten(keys=3, times=9)}, compacted(), ManualClock(NOW))
    return path


def clean(path: Path, now_ms: int) -> None:
    """A round of each log."""
    said = [word for name, text in SETTINGS[:2] for word in ("-c", f"{name}={text}")]
    words = ["clean", str(path), "--engine", "inline", "--now", str(now_ms), "--force", *said]
    assert main(words) == 0


def table(
    view: str, path: Path, now_ms: int = NOW, *, clock: Clock | None = None,
    meanwhile: Callable[[], object] = lambda: None, **changes: Any,
) -> pa.Table:  # fmt: skip
    """All units' rows, each unit sent as JSON; `meanwhile` happens between planning and reading."""
    clock = clock or ManualClock(now_ms)
    options = ViewOptions(view, (str(path),), now_ms, SETTINGS)
    units = view_units(replace(options, **changes), clock)
    meanwhile()
    found = [b for unit in units for b in read_unit(decode_unit(encode_unit(unit)), clock)]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMAS[view], check_metadata=True)
    return pa.Table.from_batches(found, SCHEMAS[view])


def rows(view: str, path: Path, now_ms: int = NOW, **more: Any) -> Rows:
    """Rows as Python values, times as whole milliseconds."""
    found = table(view, path, now_ms, **more)
    for n, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(n, field.name, found.column(n).cast(pa.int64(), safe=False))
    times = [f.name for f in SCHEMAS[view] if pa.types.is_timestamp(f.type)]
    return [
        {name: value // 1000 if name in times and value is not None else value
         for name, value in row.items()}
        for row in found.to_pylist()
    ]  # fmt: skip
