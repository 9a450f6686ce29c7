"""A service without an engine, until there is work; and one that ends when there was none."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.decide.clock import ClockVerdict
from lapse.lifecycle.decide.select import Decision, Due, LogInfo
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import Asleep, EngineWanted
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import read_progress, read_queue, read_reports
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    MEMORY,
    NOW,
    compacted,
    env_of,
    make_logs,
    overwritten,
    write,
)
from tests.support.lifecycle.served import PAUSE_MS, parts

QUIET_MS = 600_000
ENDS_WHEN_QUIET = ServiceOptions(MEMORY, PAUSE_MS, quiet_ms=QUIET_MS)


def test_no_engine_is_wanted_while_nothing_is_due(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}, min_cleanable_dirty_ratio=1) as p:
        service = p.serve(engine=Asleep())
        for _ in range(10):
            p.clock.advance(service.step())
        told = read_progress(p.data)
        assert told is not None
        assert (told.state, told.detail) == ("idle", "nothing is due")


def test_one_is_wanted_for_a_round_and_nothing_has_happened_yet(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        with pytest.raises(EngineWanted, match="rounds of 1 logs are due"):
            p.serve(engine=Asleep()).step()
        assert list(read_reports(p.data)) == []
        assert read_queue(p.data) is None
        assert len(p.records("a-0")) == 100
        p.service.step()
        assert len(p.records("a-0")) == 10


def test_one_is_wanted_to_look_through_segments(tmp_path: Path) -> None:
    clock, data = ManualClock(NOW), tmp_path / "data"
    configs = make_logs(data, {"a": overwritten()}, compacted(), clock)
    shutil.rmtree(data / "a-0" / ".lapse")
    with DirectoryOwner(data, configs, RealFs(), clock) as owner:
        service = Service(owner, Asleep(), env_of(clock), data, ENDS_WHEN_QUIET)
        with pytest.raises(EngineWanted, match="segments are to be looked through"):
            service.step()


def test_it_ends_when_nothing_was_due_for_a_while(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        assert p.serve(options=ENDS_WHEN_QUIET).run()
        assert len(p.records("a-0")) == 10
        assert QUIET_MS <= p.clock.now_ms() - NOW <= QUIET_MS + PAUSE_MS


def test_a_round_begins_the_while_anew(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        service = p.serve(options=ENDS_WHEN_QUIET)

        def writing(pause_ms: int) -> None:
            p.clock.advance(pause_ms)
            if len(p.engine.runs) == 1 and p.clock.now_ms() - NOW > QUIET_MS // 2:
                write(p.log("a-0"), overwritten(), p.clock.now_ms())
                p.log("a-0").roll(p.clock.now_ms())

        service._rest = writing  # type: ignore[method-assign]
        assert service.run()
        assert p.engine.runs == [["a-0"], ["a-0"]]
        assert p.clock.now_ms() - NOW >= QUIET_MS // 2 + QUIET_MS


def test_what_is_due_and_set_back_keeps_it(tmp_path: Path) -> None:
    """Else another process would begin with it at once, and again and again."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.engine.failing = {"a-0": "no luck"}
        service = p.serve(options=ENDS_WHEN_QUIET)

        def until_tomorrow(pause_ms: int) -> None:
            p.clock.advance(pause_ms)
            if p.clock.now_ms() - NOW > 86_400_000:
                service.request_stop()

        service._rest = until_tomorrow  # type: ignore[method-assign]
        assert not service.run()


def test_who_waits_for_people_is_not_quiet(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        pause(RealFs(), p.data, [], Pause(EVERY_LOG, NOW))
        service = p.serve(options=ENDS_WHEN_QUIET)
        p.clock.advance(service.step())
        assert not service._is_quiet


def test_a_broker_that_is_away_keeps_no_engine(tmp_path: Path) -> None:
    """Nothing that it has can be due; the next process waits for it, without one."""
    clock = ManualClock(NOW)
    owner = RemoteOwner.beside(tmp_path)
    assert Service(owner, Asleep(), env_of(clock), tmp_path, ENDS_WHEN_QUIET).run()
    assert clock.now_ms() - NOW >= QUIET_MS


def test_an_owner_that_leaves_after_a_long_step_ends_no_quiet_time(tmp_path: Path) -> None:
    """Something was due in it; the quiet begins when the owner is found to be away."""
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        service = p.serve(options=ENDS_WHEN_QUIET)

        def long(_: object) -> list[object]:
            p.clock.advance(2 * QUIET_MS)
            raise OwnerGone("it restarts")

        p.owner.commit = long  # type: ignore[method-assign, assignment]
        service.step()
        assert not service._is_quiet


def test_it_stays_where_it_is_to_stay(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        service = p.serve(options=ServiceOptions(MEMORY, PAUSE_MS, quiet_ms=-1))

        def for_a_year(pause_ms: int) -> None:
            p.clock.advance(pause_ms + 86_400_000)
            if p.clock.now_ms() - NOW > 365 * 86_400_000:
                service.request_stop()

        service._rest = for_a_year  # type: ignore[method-assign]
        assert not service.run()


def test_a_log_of_which_nothing_more_can_be_stamped_keeps_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tombstones are due for ever, and it gets no round until its files change."""
    with parts(tmp_path / "data", {"a": overwritten()}, min_cleanable_dirty_ratio=1) as p:
        service = p.serve(options=ENDS_WHEN_QUIET)
        decide = service._decide

        def for_tombstones(infos: Iterable[LogInfo], clock: ClockVerdict) -> list[Decision]:
            return [one._replace(due=(Due.TOMBSTONES,)) for one in decide(infos, clock)]

        monkeypatch.setattr(service, "_decide", for_tombstones)
        [info] = p.owner.logs()
        service._setbacks.exhaust("a-0", info.facts.generation)
        service.step()
        assert p.engine.runs == []
        assert service._is_quiet
        service._setbacks.exhaust("a-0", info.facts.generation + 1)
        service.step()
        assert p.engine.runs == [["a-0"]]
        assert not service._is_quiet
