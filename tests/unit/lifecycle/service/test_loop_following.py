"""Services that follow one another: who is not at work says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.owner.protocol import Owner, OwnerTaken
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryReceipt
from lapse.lifecycle.status.reports import PROGRESS, STOPPED, read_progress
from tests.support.lifecycle.rounds import overwritten
from tests.support.lifecycle.served import parts


class Taken:
    """An owner that serves another service while it `is_taken`."""

    def __init__(self, owner: Owner) -> None:
        self._owner, self.is_taken = owner, True

    def logs(self) -> list[LogInfo]:
        if self.is_taken:
            raise OwnerTaken("process 7 is there")
        return self._owner.logs()

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        return self._owner.commit(receipts)

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        return self._owner.adopt_summaries(receipts)


def test_who_follows_another_service_writes_nothing_of_it(tmp_path: Path) -> None:
    """The files are that one's; when it is gone they are ours, at once."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        owner = Taken(p.owner)
        service = p.serve(owner)
        assert service.step() == 100
        assert not (p.data / PROGRESS).exists()
        owner.is_taken = False
        assert service.step() == 0
        assert (p.data / PROGRESS).exists()
        (p.data / PROGRESS).unlink()
        owner.is_taken = True
        service.step()
        service.request_stop()
        service.run()
        assert not (p.data / PROGRESS).exists()


def test_who_leaves_says_nothing_of_it(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.service.leave()
        assert not p.service.run()
        assert not (p.data / PROGRESS).exists()
        another = p.serve()
        another.request_stop()
        another.run()
        told = read_progress(p.data)
        assert told is not None
        assert told.state == STOPPED
