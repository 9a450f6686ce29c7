"""Which aborted transactions a trimmed segment goes on to list."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.log.txn_index import AbortedTxn, encode_entries, parse_entries
from tests.unit.lifecycle.round.test_rewrite import data, marker, offsets, run, trim, written

LOW, HIGH = AbortedTxn(1, 0, 1, 2), AbortedTxn(2, 2, 4, 5)


@pytest.mark.parametrize(("log_start", "listed"), [(1, [LOW, HIGH]), (2, [HIGH]), (4, [HIGH])])
def test_a_transaction_is_listed_for_as_long_as_its_marker_is_there(
    tmp_path: Path, log_start: int, listed: list[AbortedTxn]
) -> None:
    """KIP-107: whoever reads from the very marker on is told of it still."""
    content = (
        data(0, b"a", producer=1, transactional=True) + marker(1, 1, commit=False)
        + data(2, b"b", b"c", producer=2, transactional=True) + marker(4, 2, commit=False)
    )  # fmt: skip
    plan = trim(tmp_path, 0, content, log_start)
    (tmp_path / f"{0:020d}.txnindex").write_bytes(encode_entries([LOW, HIGH]))
    run(plan)
    assert offsets(plan, 0) == list(range(log_start, 5))
    assert parse_entries(written(plan, 0, "aborted"), "t") == listed
