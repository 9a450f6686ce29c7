"""The table's files as an Iceberg table: one snapshot a run, by PyIceberg.

Unless a catalog is named, one lies in the table's folder, in a file of SQLite. The files have the
columns' names and no ids, and their partition in their path: the table has a mapping of names, and
the partition of each file.

**It forgets as the table does.** Of no column there are bounds, since bounds of keys are keys. With
each run the snapshots before it go, and the metadata that they alone had.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    ValidationException,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from sqlalchemy import URL

from lapse.base.bucket import Bucket
from lapse.base.errors import ConfigError, StorageError
from lapse.lifecycle.erase.table_files import EXPORT_CATALOG
from lapse.spark.export.files import SCHEMA, TableFile, rows_in
from lapse.spark.export.store import Folder
from lapse.spark.export.table_log import (
    Change,
    LogOptions,
    changed_meanwhile,
    refuse_names,
    said_of_the_table,
)

NAMESPACE = "lapse"
_METADATA = "metadata"
_NAME_MAPPING = "schema.name-mapping.default"
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.metrics.default": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "1",
}
_BY = "partition"
_NOTE, _RETRIES = "lapse.export", "commit.retry.num-retries"


def catalog_uri(folder: Path) -> str:
    """Of the catalog in a table's folder, as SQLAlchemy takes it."""
    return URL.create("sqlite", database=str(folder / EXPORT_CATALOG)).render_as_string()


class IcebergLog:
    """Versions are sequence numbers, of which each snapshot takes one (Iceberg's table spec)."""

    first_version = 1

    def __init__(self, options: LogOptions) -> None:
        self.store, self._catalog_name = options.store, options.catalog
        self._name = (NAMESPACE, options.topic)
        self._read: tuple[IcebergTable | None] | None = None  # once it was asked
        refuse_names(options, "?#")  # PyIceberg and Hadoop decode nothing in a path, and end there
        if isinstance(self.store, Bucket):
            if options.catalog is None:
                raise ConfigError(
                    f"--to {self.store}: an Iceberg table there needs --catalog: a file of SQLite "
                    "cannot be in an object store"
                )
            self._location = self.store.uri
        else:
            self._location = f"file://{self.store.path}"

    def newest_version(self) -> int | None:
        """The newest one's number."""
        table = self._table()
        newest = None if table is None else table.current_snapshot()
        return None if newest is None else newest.sequence_number

    @said_of_the_table
    def files(self) -> set[str]:
        """Those of others by their whole URI."""
        table = self._table()
        return set() if table is None else set(self._data_files(table))

    @said_of_the_table
    def commit(self, change: Change) -> None:
        """Somebody else's meanwhile is refused by the catalog."""
        table = self._table() or self._created()
        # In memory alone: the library would try again above somebody else's snapshot.
        table.metadata.properties[_RETRIES] = "0"
        there = self._data_files(table)
        mapping = table.schema().name_mapping.model_dump_json()
        try:
            with table.transaction() as run:
                if not table.spec().fields:  # it has just been made
                    with run.update_spec() as spec:
                        spec.add_identity(_BY)
                    run.set_properties({_NAME_MAPPING: mapping})
                if change.note:
                    run.set_properties({_NOTE: change.note})
                spec_id = run.table_metadata.default_spec_id
                with run.update_snapshot().overwrite() as snapshot:
                    for name in change.removed:
                        snapshot.delete_data_file(there[name])
                    for name in change.added:
                        snapshot.append_data_file(self._data_file(name, spec_id))
        except (CommitFailedException, ValidationException) as e:
            raise changed_meanwhile(self.store) from e
        finally:
            self.forget()

    @said_of_the_table
    def note(self) -> str | None:
        """A property, which changes with the snapshot that it is of."""
        table = self._table()
        return None if table is None else table.properties.get(_NOTE)

    def is_begun(self) -> bool:
        """It was made, and its first snapshot was not."""
        table = self._table()
        return table is not None and table.current_snapshot() is None

    def forget(self) -> None:
        self._read = None

    def settle(self) -> None:
        """Snapshots before the newest go, and metadata that nothing names any more."""
        table = self._table()
        assert table is not None
        newest = table.current_snapshot()
        assert newest is not None
        kept, sync = self._files_of(table, newest), self.store.sync
        if not kept:  # what goes could not be told from what stays
            raise StorageError(f"--to {self.store}: {newest.manifest_list} is not there")
        sync([*sorted(kept), self._name_of(table.metadata_location), _METADATA])
        older = [one for one in table.snapshots() if one != newest]
        if not older:
            return
        # Their files first, which nobody else names: a kill in between leaves none unknown.
        gone = {path for one in older for path in self._files_of(table, one)}
        for name in sorted(gone - kept):
            self.store.delete(name)
        self._expire(table, older)
        self.forget()
        table = self._table()
        assert table is not None
        sync([self._name_of(table.metadata_location), _METADATA])

    # --- the library's things --------------------------------------------------------------------

    @cached_property
    def _catalog(self) -> Catalog:
        if self._catalog_name is not None:
            return load_catalog(self._catalog_name)
        assert isinstance(self.store, Folder)
        uri = catalog_uri(self.store.path)
        return SqlCatalog(NAMESPACE, uri=uri, warehouse=self._location)

    @said_of_the_table
    def _table(self) -> IcebergTable | None:
        """None where there is none yet. Raises ConfigError where the catalog has it elsewhere."""
        if self._read is None:
            self._read = (self._loaded(),)
        return self._read[0]

    def _loaded(self) -> IcebergTable | None:
        if self._catalog_name is None and not self.store.has(EXPORT_CATALOG):
            return None
        try:
            table = self._catalog.load_table(self._name)
        except (NoSuchNamespaceError, NoSuchTableError):
            return None
        if table.location() != self._location:
            known = f"{'.'.join(self._name)} at {table.location()}"
            raise ConfigError(f"--to {self.store}: the catalog has table {known}")
        return table

    def _created(self) -> IcebergTable:
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        return self._catalog.create_table(
            self._name, SCHEMA, location=self._location, properties=_PROPERTIES
        )

    def _data_files(self, table: IcebergTable) -> dict[str, DataFile]:
        """By their names from the folder on."""
        found = (task.file for task in table.scan().plan_files())
        return {file.file_path.removeprefix(f"{self._location}/"): file for file in found}

    @said_of_the_table
    def _expire(self, table: IcebergTable, snapshots: Sequence[Snapshot]) -> None:
        """Of two that do it at the same time one does; then there is nothing left to do."""
        wanted = {one.snapshot_id for one in snapshots}
        try:
            table.maintenance.expire_snapshots().by_ids([*wanted]).commit()
        except (ValueError, CommitFailedException):
            now = self._catalog.load_table(self._name)
            if not wanted.isdisjoint(one.snapshot_id for one in now.snapshots()):
                raise

    @said_of_the_table
    def _files_of(self, table: IcebergTable, snapshot: Snapshot) -> set[str]:
        """A snapshot's own metadata, as far as it is there."""
        names = self._name_of(snapshot.manifest_list)
        if not self.store.has(names):
            return set()
        manifests = snapshot.manifests(table.io)
        return {names, *(self._name_of(one.manifest_path) for one in manifests)}

    def _name_of(self, uri: str) -> str:
        return uri.removeprefix(f"{self._location}/")

    def _data_file(self, name: str, spec_id: int) -> DataFile:
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location}/{name}",
            file_format=FileFormat.PARQUET,
            partition=Record(int(name.partition("/")[0].partition("=")[2])),
            record_count=rows_in(TableFile(self.store, name)),
            file_size_in_bytes=self.store.size(name),
            spec_id=spec_id,
        )
