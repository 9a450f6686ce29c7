"""Tables of all formats, as their own libraries read them and others write to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable

from lapse.spark.export.decide import Format
from lapse.spark.export.files import SCHEMA
from lapse.spark.export.iceberg import NAMESPACE, catalog_uri

TOPIC = "users.by.id"
VERSIONED = [Format.DELTA, Format.ICEBERG]


def iceberg(folder: Path, topic: str = TOPIC) -> IcebergTable:
    """By the catalog in its folder."""
    catalog = SqlCatalog(NAMESPACE, uri=catalog_uri(folder))
    return catalog.load_table((NAMESPACE, topic))


READERS: dict[Format, Callable[[Path], pa.Table]] = {
    Format.PARQUET: lambda folder: ds.dataset(folder, partitioning="hive").to_table(),
    Format.DELTA: lambda folder: DeltaTable(str(folder)).to_pyarrow_table(),
    Format.ICEBERG: lambda folder: iceberg(folder).scan().to_arrow(),
}


def file_of(folder: Path, name: str, *keys: bytes) -> str:
    """A file of rows, as tasks write them; its name."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(keys)
    told = {"offset": range(count), "key": keys, "value": [b"v"] * count}
    columns = {f.name: told.get(f.name, [None] * count) for f in SCHEMA if f.name != "partition"}
    schema = pa.schema([field for field in SCHEMA if field.name != "partition"])
    pq.write_table(pa.table(columns, schema), path)
    return name


def append_as_a_stranger(folder: Path, how: Format) -> None:
    """Somebody else's commit: all rows once more."""
    rows = READERS[how](folder)
    if how is Format.DELTA:
        write_deltalake(str(folder), rows, mode="append")
    else:
        iceberg(folder).append(rows)
