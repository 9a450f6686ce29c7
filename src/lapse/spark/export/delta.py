"""The table's files as a Delta table: one commit a run, by the library of delta-rs."""

from __future__ import annotations

import json
import os

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from lapse.base.errors import ConfigError
from lapse.spark.export.files import SCHEMA, TableFile, rows_in
from lapse.spark.export.store import Bucket, s3_options
from lapse.spark.export.table_log import Change, LogOptions, refuse_names, said_of_the_table

_LOG = "_delta_log"
_NOTE = "lapse.export"


class DeltaLog:
    """Versions are Delta's own; readers of older ones find their files gone (`table_log`)."""

    first_version = 0

    def __init__(self, options: LogOptions) -> None:
        refuse_names(options, "%")  # of which delta-rs decodes a part, and another one not
        self.store = options.store

    @said_of_the_table
    def newest_version(self) -> int | None:
        """The newest one's number."""
        there = DeltaTable.is_deltatable(self.store.uri, self._storage)
        return int(self._table().version()) if there else None

    @said_of_the_table
    def files(self) -> set[str]:
        """Those of others by their whole URI."""
        return set(self._table().get_add_actions(flatten=True)["path"].to_pylist())

    @said_of_the_table
    def note(self) -> tuple[str, int] | None:
        """In what a commit says of itself, where others write nothing of that name."""
        for one in self._table().history():
            if (found := one.get(_NOTE)) is not None:
                return found, int(one["version"])
        return None

    @said_of_the_table
    def commit(self, change: Change) -> None:
        """Somebody else's meanwhile is refused by the library."""
        adds = [self._add(name, change.at_ms) for name in change.added]
        schema = Schema.from_arrow(SCHEMA)
        # The library would try again above somebody else's version, with rows that it also added.
        said = CommitProperties({_NOTE: change.note} if change.note else None, 0)
        if self.newest_version() is None:
            create_table_with_add_actions(
                self.store.uri, schema, adds, partition_by=["partition"],
                storage_options=self._storage, commit_properties=said,
            )  # fmt: skip
            return
        removes = [
            RemoveAction(name, True, change.at_ms, partition_values=_partition(name))
            for name in change.removed
        ]
        try:
            self._table().create_write_transaction(
                [*removes, *adds], "append", schema, partition_by=["partition"],
                commit_properties=said,
            )  # fmt: skip
        except CommitFailedError as e:
            raise ConfigError(
                f"--to {self.store}: somebody else changed the table meanwhile; run this again"
            ) from e

    def settle(self) -> None:
        """Older versions are in the log for good; their files are not."""
        self.store.sync([f"{_LOG}/{self._table().version():020}.json", _LOG])

    @property
    def _storage(self) -> dict[str, str] | None:
        """What the library does not find in the environment itself.

        That a version is written once is the store's to say: by conditional puts, which S3 has.
        """
        if not isinstance(self.store, Bucket):
            return None
        found = {"aws_conditional_put": "etag"}
        options = s3_options(os.environ)
        if options.get("scheme") == "http":
            found["aws_allow_http"] = "true"
        if "region" in options:
            found["aws_region"] = options["region"]
        return found

    @said_of_the_table
    def _table(self) -> DeltaTable:
        return DeltaTable(self.store.uri, storage_options=self._storage)

    def _add(self, name: str, at_ms: int) -> AddAction:
        stats = json.dumps({"numRecords": rows_in(TableFile(self.store, name))})
        return AddAction(name, self.store.size(name), _partition(name), at_ms, True, stats)


def _partition(name: str) -> dict[str, str | None]:
    return {"partition": name.partition("/")[0].partition("=")[2]}
