"""The digest of rows: the same for the same rows of a topic."""

from __future__ import annotations

import numpy as np

from lapse.records.batch_writer import Bytes, RecordFields, no_headers
from lapse.records.row_digest import RowDigest


def fields(values: list[bytes]) -> RecordFields:
    count = len(values)
    keys, times = Bytes.of([b"k"] * count), np.arange(count)
    return RecordFields(
        keys, Bytes.of(values), no_headers(count), times * 0, np.zeros(count, np.bool_)
    )


def of(*parts: tuple[str, list[bytes]]) -> tuple[int, str]:
    digest = RowDigest()
    for topic, values in parts:
        digest.add(fields(values), topic)
    return digest.rows, str(digest)


def test_batches_and_order_do_not_matter() -> None:
    whole = of(("t", [b"a", b"b", b"c"]))
    assert whole == of(("t", [b"c"]), ("t", []), ("t", [b"b", b"a"]))
    assert whole[0] == 3
    assert len(whole[1]) == 32


def test_rows_and_their_topic_do() -> None:
    found = [of(("t", [b"a"])), of(("t", [b"b"])), of(("u", [b"a"])), of(("t", [b"a", b"a"])), of()]
    assert len({digest for _, digest in found}) == len(found)
