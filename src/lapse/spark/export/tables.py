"""A table by its place: a folder's, or one in an object store."""

from __future__ import annotations

from collections.abc import Callable

from lapse.base.bucket import Bucket
from lapse.base.fs import RealFs
from lapse.spark.export.bucket_table import BucketTable, name_of
from lapse.spark.export.store import Folder, Out, store_at
from lapse.spark.export.table import Table, attempt_folder

AnyTable = Table | BucketTable


def table_at(place: str) -> AnyTable:
    """Raises ConfigError where the place is none."""
    store = store_at(place, RealFs)
    return BucketTable(store) if isinstance(store, Bucket) else Table(store.path, store.fs)


def created(store: Folder | Bucket, run_id: str, partition: int) -> Callable[[str], Out]:
    """How a task makes a new file of a run: elsewhere in a folder, in its last place in a store."""
    if isinstance(store, Folder):
        return Folder(attempt_folder(store.path, run_id, partition), store.fs).create
    return lambda name: store.create(name_of(run_id, partition, name))
