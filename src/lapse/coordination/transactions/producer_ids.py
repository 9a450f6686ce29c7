"""Producer ids out of blocks: which id is next, and when another block is needed.

The allocator of a block stores it durably before its first id is used, so no id is given twice;
ids that are left at a restart are never used. As in Kafka's `RPCProducerIdManager`, the next block
is requested when nine tenths of one are used; a client that needs an id while there is none gets
COORDINATOR_LOAD_IN_PROGRESS, after which every client retries.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError

BLOCK = 1000
RETRY_BACKOFF_MS = 50
ID_MAX = (1 << 63) - 1
_PREFETCH_TENTHS = 9


class ProducerIds:
    """The present block and the one after it.

    Not asynchronous: `wanted` says when the owner should fetch a block, `allocated` or `failed`
    ends that.
    """

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self._left = range(0)
        self._spare: range | None = None
        self._is_requested = False
        self._prefetch_at = 0  # request a block once this many ids or fewer are left
        self._retry_ms: int | None = None

    def next(self) -> int:
        """Return an unused id; raises COORDINATOR_LOAD_IN_PROGRESS until the next block comes."""
        if not self._left and self._spare is not None:
            self._left, self._spare = self._spare, None
            self._prefetch_at = len(self._left) - len(self._left) * _PREFETCH_TENTHS // 10
        if not self._left:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "the block of producer ids is used up, the next one is not here yet",
            )
        given, self._left = self._left[0], self._left[1:]
        return given

    def wanted(self, now_ms: int) -> bool:
        """Whether to fetch a block now; True once for each that is to be fetched."""
        waits = self._retry_ms is not None and now_ms < self._retry_ms
        if (
            self._is_requested
            or waits
            or self._spare is not None
            or len(self._left) > self._prefetch_at
        ):
            return False
        self._is_requested = True
        return True

    def allocated(self, first: int, count: int) -> None:
        """A block has come: `first` to `first + count - 1`, durably ours.

        Raises ValueError where it is empty, goes past int64, or reaches back behind ids that were
        given: the owner calls `failed` then.
        """
        newest = self._left.stop - 1
        if first <= newest or first < 0 or count < 1 or first > ID_MAX - count:
            raise ValueError(f"producer ids {first} to {first + count - 1} cannot follow {newest}")
        self._spare = range(first, first + count)
        self._is_requested, self._retry_ms = False, None

    def failed(self, now_ms: int) -> None:
        """No block has come; the next request may be made after a short wait."""
        self._is_requested, self._retry_ms = False, now_ms + RETRY_BACKOFF_MS
