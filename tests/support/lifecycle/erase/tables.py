"""Tables' files written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PART = "partition=0/part.parquet"
OTHER = b"other-0001"


def table_with(
    folder: Path, keys: Sequence[bytes | None], path: str = PART, first: int = 0, **how: Any
) -> Path:
    """A file of rows at offsets from `first` on; the value of None is no value."""
    found = folder / path
    found.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table(
        {
            "offset": pa.array(range(first, first + len(keys)), pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b"v"] * len(keys), pa.binary()),
        }
    )
    pq.write_table(rows, found, **how)
    return found
