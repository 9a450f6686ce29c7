"""Which markers are on their way, and which have to go again.

The bookkeeping under `coordinator`: markers of a transaction go to many partitions,
results come back in pieces, some fail. A result counts once, for the ticket it was requested under:
late results of an earlier tenure say nothing of the present transaction, which may well have the
same producer id, epoch and end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.coordination.transactions.effects import WriteMarkers

# Results after which the partition has nothing open of this transaction. At INVALID_PRODUCER_EPOCH
# Kafka stops all of the transaction's markers, and the id is stuck for ever. But such a partition
# knows a later epoch, which began there after this one had ended: it is done, the others go on.
DONE = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
# A coordinator with a later epoch has taken over: it ends the transaction, or our own next load.
STOP = ErrorCode.TRANSACTION_COORDINATOR_FENCED
# Any other result is tried again. Kafka throws at those it does not expect, which ends its sender.


class MarkerRounds:
    """Markers under way, by ticket, and failed partitions, by transactional id."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[str, set[TopicPartition]]] = {}
        self._failed: dict[str, set[TopicPartition]] = {}

    def sent(self, markers: WriteMarkers) -> None:
        """These markers went out."""
        self._waiting[markers.ticket] = (markers.transactional_id, set(markers.partitions))

    def report(
        self,
        markers: WriteMarkers,
        results: Mapping[TopicPartition, ErrorCode],
        gone: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """The partitions that need no marker any more, by this report."""
        name, waiting = self._waiting.get(markers.ticket, ("", set()))
        if any(results[tp] == STOP for tp in waiting & results.keys()):
            self.forget([name])
            return set()
        done = {tp for tp in waiting if tp in gone or results.get(tp) in DONE}
        failed = {tp for tp in waiting if tp in results} - done
        waiting -= done | failed
        if not waiting:
            self._waiting.pop(markers.ticket, None)
        if failed:
            self._failed.setdefault(name, set()).update(failed)
        return done

    def take_failed(self) -> dict[str, set[TopicPartition]]:
        """What has to go again, by transactional id; the caller sends it."""
        failed, self._failed = self._failed, {}
        return failed

    def forget(self, names: Iterable[str]) -> None:
        """No markers of these ids count any more."""
        forgotten = set(names)
        self._waiting = {
            ticket: entry for ticket, entry in self._waiting.items() if entry[0] not in forgotten
        }
        for name in forgotten:
            self._failed.pop(name, None)
