"""A transaction whose data is copied file to file, unseen by the kernel, keeps its marker."""

from __future__ import annotations

import pytest

from lapse.lifecycle.round import rewrite
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.reference import cleaning, rounds

NOW = 1_700_000_000_000
COMMIT = b"\0\0\0\1"


def data(offset: int, *pairs: tuple[bytes, bytes], producer: int = -1) -> bytes:
    """A batch; of a transaction where there is a producer."""
    spec = BatchSpec(offset, producer_id=producer, transactional=producer >= 0)
    return build_batch([NewRecord(key, value, NOW) for key, value in pairs], spec)


@pytest.mark.parametrize("horizon_ms", [None, NOW - 1])
def test_its_marker_is_neither_stamped_nor_removed(
    monkeypatch: pytest.MonkeyPatch, horizon_ms: int | None
) -> None:
    """Without it, who replays the log would take the transaction for one that goes on."""
    monkeypatch.setattr(rewrite, "COPY_BYTES_MIN", 1000)
    log = data(0, (b"a", b"old"), (b"a", b"new"))
    log += data(2, *((b"k%d" % n, b"v" * 500) for n in range(4)), producer=1)
    spec = BatchSpec(
        6, producer_id=1, producer_epoch=0, transactional=True, control=True, horizon_ms=horizon_ms
    )
    log += build_batch([NewRecord(COMMIT, b"\0\0\0\0\0\1", NOW)], spec)
    given = cleaning.Round(
        False, 0, 7, ((0, log),), frozenset(), -5, NOW + 1000, NOW, 1000
    )  # fmt: skip
    done = rounds.compare(given, 1 << 30)
    [group] = done.result.groups
    assert group.stamped == 0
    assert group.removed == {"superseded": 1}
    assert group.summary.commits == 1
