"""The table's files as a Delta table: one commit a run, by the library of delta-rs.

It is an extra (`lapse[delta]`), imported by nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lapse.base.errors import ConfigError

_MISSING = "--format delta needs the package deltalake: pip install 'lapse[delta]'"


@dataclass(frozen=True, slots=True)
class Change:
    """What one version does: files below the table's folder."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def newest_version(folder: Path) -> int | None:
    """None where a folder has no such table yet. Raises ConfigError without the package."""
    deltalake = _library()
    if not (folder / "_delta_log").is_dir():
        return None
    return int(deltalake.DeltaTable(str(folder)).version())


def commit(folder: Path, schema: pa.Schema, change: Change, now_ms: int) -> None:
    """The next version, or the first one; somebody else's meanwhile is refused by the library."""
    deltalake = _library()
    from deltalake import transaction  # noqa: PLC0415  (an extra)

    adds = [
        transaction.AddAction(
            name, (folder / name).stat().st_size, _partition(name), now_ms, True,
            _stats(folder / name),
        )
        for name in change.added
    ]  # fmt: skip
    if newest_version(folder) is None:
        transaction.create_table_with_add_actions(
            str(folder), _schema(deltalake, schema), adds, partition_by=["partition"]
        )
        return
    removes = [
        transaction.RemoveAction(name, True, now_ms, partition_values=_partition(name))
        for name in change.removed
    ]
    deltalake.DeltaTable(str(folder)).create_write_transaction(
        [*removes, *adds], "append", _schema(deltalake, schema), partition_by=["partition"]
    )


def _library() -> Any:
    try:
        import deltalake  # noqa: PLC0415  (an extra)
    except ImportError as e:
        raise ConfigError(_MISSING) from e
    return deltalake


def _schema(deltalake: Any, schema: pa.Schema) -> Any:
    return deltalake.Schema.from_arrow(schema)


def _partition(name: str) -> dict[str, str | None]:
    return {"partition": name.partition("/")[0].partition("=")[2]}


def _stats(path: Path) -> str:
    return json.dumps({"numRecords": pq.read_metadata(path).num_rows})
