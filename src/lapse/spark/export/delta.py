"""The table's files as a Delta table: one commit a run, by the library of delta-rs."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from lapse.base.fs import Fs
from lapse.spark.export.files import SCHEMA
from lapse.spark.export.table_log import Change, LogOptions, refuse_names, said_of_the_table

_LOG = "_delta_log"


class DeltaLog:
    """Versions are Delta's own; readers of older ones find their files gone (`table_log`)."""

    first_version = 0

    def __init__(self, options: LogOptions) -> None:
        refuse_names(options, "%")  # of which delta-rs decodes a part, and another one not
        self.folder = options.folder

    def newest_version(self) -> int | None:
        """The newest one's number."""
        return int(self._table().version()) if (self.folder / _LOG).is_dir() else None

    @said_of_the_table
    def files(self) -> set[str]:
        """Those of others by their whole URI."""
        return set(self._table().get_add_actions(flatten=True)["path"].to_pylist())

    @said_of_the_table
    def commit(self, change: Change) -> None:
        """Somebody else's meanwhile is refused by the library."""
        adds = [self._add(name, change.at_ms) for name in change.added]
        schema = Schema.from_arrow(SCHEMA)
        if self.newest_version() is None:
            create_table_with_add_actions(
                str(self.folder), schema, adds, partition_by=["partition"]
            )
            return
        removes = [
            RemoveAction(name, True, change.at_ms, partition_values=_partition(name))
            for name in change.removed
        ]
        self._table().create_write_transaction(
            [*removes, *adds], "append", schema, partition_by=["partition"]
        )

    def settle(self, fs: Fs) -> None:
        """Older versions are in the log for good; their files are not."""
        log = self.folder / _LOG
        newest = log / f"{self._table().version():020}.json"
        fs.sync_all([path for path in (newest, log) if path.exists()])

    @said_of_the_table
    def _table(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    def _add(self, name: str, at_ms: int) -> AddAction:
        path = self.folder / name
        stats = json.dumps({"numRecords": pq.read_metadata(path).num_rows})
        return AddAction(name, path.stat().st_size, _partition(name), at_ms, True, stats)


def _partition(name: str) -> dict[str, str | None]:
    return {"partition": name.partition("/")[0].partition("=")[2]}
