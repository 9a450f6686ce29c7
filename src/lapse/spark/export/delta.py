"""The table's files as a Delta table: one commit a run, by the library of delta-rs."""

from __future__ import annotations

import json
import os

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from lapse.base.bucket import Bucket, s3_options
from lapse.spark.export.files import SCHEMA, TableFile, rows_in
from lapse.spark.export.store import Folder
from lapse.spark.export.table_log import Change, LogOptions, refuse_names, said_of_the_table

_LOG = "_delta_log"
_NOTE = "lapse.export"


class DeltaLog:
    """Versions are Delta's own; readers of older ones find their files gone (`table_log`)."""

    first_version = 0

    def __init__(self, options: LogOptions) -> None:
        refuse_names(options, "%")  # of which delta-rs decodes a part, and another one not
        self.store = options.store
        self._read: tuple[DeltaTable | None] | None = None  # once it was asked

    @said_of_the_table
    def newest_version(self) -> int | None:
        """The newest one's number."""
        table = self._table()
        return None if table is None else int(table.version())

    @said_of_the_table
    def files(self) -> set[str]:
        """Those of others by their whole URI."""
        table = self._table()
        return set() if table is None else _files_of(table)

    @said_of_the_table
    def note(self) -> str | None:
        """In what a commit says of itself, where others write nothing of that name."""
        table = self._table()
        limit = 1  # a commit each, and all that the log has are many
        while table is not None:
            said = table.history(limit)
            found = next((one[_NOTE] for one in said if one.get(_NOTE) is not None), None)
            if found is not None or len(said) < limit:
                return found
            limit *= 2
        return None

    def is_begun(self) -> bool:
        """A table of Delta begins with its first version."""
        return False

    def forget(self) -> None:
        self._read = None

    @said_of_the_table
    def commit(self, change: Change) -> None:
        """Somebody else's meanwhile is refused by the library (`table_log.commit`)."""
        table, storage = self._table(), _storage_of(self.store)
        adds = [self._add(name, change.at_ms) for name in change.added]
        schema, by = Schema.from_arrow(SCHEMA), ["partition"]
        # The library would try again above somebody else's version, with rows that it also added.
        said = CommitProperties({_NOTE: change.note} if change.note else None, 0)
        if table is None:
            create_table_with_add_actions(
                self.store.uri, schema, adds, partition_by=by, storage_options=storage,
                commit_properties=said,
            )  # fmt: skip
        else:
            removes = [
                RemoveAction(name, True, change.at_ms, partition_values=_partition(name))
                for name in change.removed
            ]
            table.create_write_transaction(
                [*removes, *adds], "append", schema, partition_by=by, commit_properties=said
            )
        self.forget()

    def settle(self) -> None:
        """Older versions are in the log for good; their files are not."""
        newest = f"{_LOG}/{self.newest_version():020}.json"
        if self.store.has(newest):  # or a checkpoint has taken its place
            self.store.sync([newest])
        self.store.sync([_LOG])

    def _table(self) -> DeltaTable | None:
        """None where there is none yet."""
        if self._read is None:
            uri, storage = self.store.uri, _storage_of(self.store)
            is_there = DeltaTable.is_deltatable(uri, storage)
            self._read = (DeltaTable(uri, storage_options=storage) if is_there else None,)
        return self._read[0]

    def _add(self, name: str, at_ms: int) -> AddAction:
        stats = json.dumps({"numRecords": rows_in(TableFile(self.store, name))})
        return AddAction(name, self.store.size(name), _partition(name), at_ms, True, stats)


def _storage_of(store: Folder | Bucket) -> dict[str, str] | None:
    """Of an object store: what Arrow's filesystem is told, too.

    That a version is written once is the store's to say: by conditional puts, which S3 has.
    """
    if not isinstance(store, Bucket):
        return None
    options, found = s3_options(os.environ), {"aws_conditional_put": "etag"}
    if "endpoint_override" in options:
        found["aws_endpoint_url"] = f"{options['scheme']}://{options['endpoint_override']}"
        found["aws_allow_http"] = str(options["scheme"] == "http").lower()
    if "region" in options:
        found["aws_region"] = options["region"]
    return found


def _files_of(table: DeltaTable) -> set[str]:
    return set(table.get_add_actions(flatten=True)["path"].to_pylist())


def _partition(name: str) -> dict[str, str | None]:
    return {"partition": name.partition("/")[0].partition("=")[2]}
