"""The owner of a log, who may change its files, as a round sees it.

A running broker is an owner (its side is `broker.control`, ours `owner.remote`, over the channel
`owner.unix_socket` or `owner.kafka_channel`); so is a tool that holds a directory's `.lock`
(`owner.directory`). Everything a round changes goes through `commit`; what tasks found out about
segments without summary goes through `adopt_summaries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lapse.base.errors import LapseError
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryReceipt


class OwnerGone(LapseError):
    """The owner does not answer, or serves another service; it may answer again later."""


class OwnerTaken(OwnerGone):
    """It serves another service: this one may follow, and has nothing to say meanwhile."""


class OwnerNotSeen(OwnerGone):
    """Its files are not those that this machine has at their paths."""


class Owner(Protocol):
    """Facts and commits of the logs that one process owns."""

    def logs(self) -> list[LogInfo]:
        """Every log as it stands now."""

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        """Put the receipts' segments in place, one result each, in the same order.

        Receipts that carry an error are booked as failed and swept.
        """

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        """Take over the tasks' summaries of segments; one result each: None, or why it was not.

        A segment that is gone or was replaced meanwhile is passed over. The append clock stays
        the owner's.
        """
