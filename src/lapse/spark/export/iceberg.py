"""The table's files as an Iceberg table: one snapshot a run, by PyIceberg.

Unless a catalog is named, one lies in the table's folder, in a file of SQLite. The files have the
columns' names and no ids, and their partition in their path: the table has a mapping of names, and
the partition of each file.

**It forgets as the table does.** Of no column there are bounds, since bounds of keys are keys. With
each run the snapshots before it go, and the metadata that they alone had.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
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
from pyiceberg.typedef import Record

from lapse.base.errors import ConfigError
from lapse.base.fs import Fs
from lapse.lifecycle.erase.places import EXPORT_CATALOG
from lapse.spark.export.files import SCHEMA
from lapse.spark.export.table_log import Change, LogOptions

NAMESPACE = "lapse"
_METADATA = "metadata"
_NAME_MAPPING = "schema.name-mapping.default"
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.metrics.default": "none",
    "write.metadata.previous-versions-max": "1",
}
_BY = "partition"


class IcebergLog:
    """Versions are sequence numbers, of which each snapshot takes one (Iceberg's table spec)."""

    first_version = 1

    def __init__(self, options: LogOptions) -> None:
        self._options, self._folder = options, options.folder
        self._name = (NAMESPACE, options.topic)
        self._prefix = f"{self._folder.as_uri()}/"

    def newest_version(self) -> int | None:
        """The newest one's number."""
        table = self._table()
        newest = None if table is None else table.current_snapshot()
        return None if newest is None else newest.sequence_number

    def files(self) -> set[str]:
        """Those of others by their whole URI."""
        table = self._table()
        return set() if table is None else set(self._data_files(table))

    def commit(self, change: Change) -> None:
        """Somebody else's meanwhile is refused by the catalog."""
        table = self._table() or self._created()
        there = self._data_files(table)
        mapping = table.schema().name_mapping.model_dump_json()
        try:
            with table.transaction() as run:
                if not table.spec().fields:  # it has just been made
                    with run.update_spec() as spec:
                        spec.add_identity(_BY)
                    run.set_properties({_NAME_MAPPING: mapping})
                spec_id = run.table_metadata.default_spec_id
                with run.update_snapshot().overwrite() as snapshot:
                    for name in change.removed:
                        snapshot.delete_data_file(there[name])
                    for name in change.added:
                        snapshot.append_data_file(self._data_file(name, spec_id))
        except (CommitFailedException, ValidationException) as e:
            raise ConfigError(
                f"--to {self._folder}: somebody else changed the table meanwhile; run this again"
            ) from e

    def settle(self, fs: Fs) -> None:
        """Snapshots before the newest go, and metadata that nothing names any more."""
        table = self._table()
        assert table is not None
        newest = table.current_snapshot()
        assert newest is not None
        older = [one.snapshot_id for one in table.snapshots() if one != newest]
        if older:
            table.maintenance.expire_snapshots().by_ids(older).commit()
        manifests = [one.manifest_path for one in newest.manifests(table.io)]
        named = (table.metadata_location, newest.manifest_list, *manifests)
        kept = [self._folder / uri.removeprefix(self._prefix) for uri in named]
        metadata = self._folder / _METADATA
        fs.sync_all([*kept, metadata])
        for path in sorted(set(metadata.iterdir()).difference(kept)):
            fs.unlink(path)
        fs.fsync_dir(metadata)

    # --- the library's things --------------------------------------------------------------------

    def _catalog(self) -> Catalog:
        if self._options.catalog is not None:
            return load_catalog(self._options.catalog)
        uri = f"sqlite:///{self._folder / EXPORT_CATALOG}"
        return SqlCatalog(NAMESPACE, uri=uri, warehouse=self._folder.as_uri())

    def _table(self) -> IcebergTable | None:
        """None where there is none yet. Raises ConfigError where the catalog has it elsewhere."""
        if self._options.catalog is None and not (self._folder / EXPORT_CATALOG).exists():
            return None
        try:
            table = self._catalog().load_table(self._name)
        except (NoSuchNamespaceError, NoSuchTableError):
            return None
        if table.location() != self._folder.as_uri():
            known = f"{'.'.join(self._name)} at {table.location()}"
            raise ConfigError(f"--to {self._folder}: the catalog has table {known}")
        return table

    def _created(self) -> IcebergTable:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog.create_table(
            self._name, SCHEMA, location=self._folder.as_uri(), properties=_PROPERTIES
        )

    def _data_files(self, table: IcebergTable) -> dict[str, DataFile]:
        """By their names from the folder on."""
        found = (task.file for task in table.scan().plan_files())
        return {file.file_path.removeprefix(self._prefix): file for file in found}

    def _data_file(self, name: str, spec_id: int) -> DataFile:
        path = self._folder / name
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._prefix + name,
            file_format=FileFormat.PARQUET,
            partition=Record(int(Path(name).parent.name.partition("=")[2])),
            record_count=pq.read_metadata(path).num_rows,
            file_size_in_bytes=path.stat().st_size,
            spec_id=spec_id,
        )
