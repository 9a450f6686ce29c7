"""What a copy is told of its query."""

from __future__ import annotations

from lapse.spark.export.copy import rows_read


def test_a_batch_that_does_not_say_counts_for_nothing_yet() -> None:
    """Spark Connect gives null for a batch that ends in that moment; the copy failed there."""
    assert rows_read([{"numInputRows": 50}, {"numInputRows": None}, {"numInputRows": 20}]) == 70
    assert rows_read([]) == 0
