"""What control batches say, as a round reads them."""

from __future__ import annotations

from lapse.kernels.markers import ABORT, COMMIT, OTHER
from lapse.lifecycle.round.transactions import types_of
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.unit.lifecycle.round.test_rewrite import data, marker


def test_each_control_batch_says_how_its_transaction_ended() -> None:
    content = data(0, b"a", producer=1) + marker(1, 1, commit=True) + marker(2, 2, commit=False)
    types, bad = types_of(as_array(content), scan_batches(content, "t"))
    assert types.tolist() == [OTHER, COMMIT, ABORT]
    assert bad == -1, "all of them parse"


def test_the_first_that_does_not_parse_is_told() -> None:
    garbled = build_batch([NewRecord(b"k", b"v")], BatchSpec(2, producer_id=1, control=True))
    content = data(0, b"a") + marker(1, 1, commit=True) + garbled + garbled
    types, bad = types_of(as_array(content), scan_batches(content, "t"))
    assert bad == 2
    assert types.tolist() == [OTHER] * 4
