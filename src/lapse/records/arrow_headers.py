"""The Arrow column `headers` as it lies in records, by kernel. Called by `from_arrow` only."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lapse.base.errors import ConfigError
from lapse.kernels import encode_headers as kernel
from lapse.records.arrow_fields import bytes_of, typed_column
from lapse.records.batch import as_array
from lapse.records.batch_writer import Bytes, no_headers
from lapse.records.column_spec import HEADERS


def headers_column(records: pa.RecordBatch | pa.Table) -> Bytes:
    """Each record's headers, encoded, count included; null is none.

    Raises ConfigError where there is another type, or a header without a name.
    """
    count = len(records)
    column = typed_column(records, "headers", HEADERS)
    if column is None or count in {0, column.null_count}:
        return no_headers(count)
    lists = np.zeros(count + 1, np.int64)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=lists[1:])
    names, values = (bytes_of(part) for part in column.flatten().flatten())
    sizes = np.empty(count, np.int64)
    total = kernel.headers_sizes(lists, names.lengths, values.lengths, sizes)
    if total < 0:
        raise ConfigError(f"column headers: record {-1 - total} has one without a name")
    out = np.empty(total, np.uint8)
    end = kernel.write_headers(
        lists, names.data, names.starts, names.lengths, values.data, values.starts, values.lengths,
        out,
    )  # fmt: skip
    assert end == total, "headers are as long as they were measured"
    return Bytes(as_array(out), np.cumsum(sizes) - sizes, sizes)
