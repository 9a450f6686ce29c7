"""Services of several brokers on one engine: how they begin together, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.scheduling import SERVING
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.round.engine import Asleep, EngineLost, EngineWanted
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.service.quiet import Quiet
from lapse.lifecycle.service.together import Greeting, Member, Members, Together
from lapse.lifecycle.status.reports import PROGRESS, STOPPED, read_progress
from tests.support.lifecycle.rounds import (
    MEMORY,
    compacted,
    env_of,
    make_logs,
    overwritten,
    records_in,
)

WAIT_SECONDS = 30
CLOCK = SystemClock()


class Scripted:
    """A member that does what it is told to, and remembers how it was ended."""

    def __init__(self, work: Callable[[Scripted, Quiet], bool]) -> None:
        self._work = work
        self.ended = threading.Event()
        self.how: list[str] = []

    def run(self, quiet: Quiet) -> bool:
        return self._work(self, quiet)

    def request_stop(self) -> None:
        self.how.append("stop")
        self.ended.set()

    def leave(self) -> None:
        self.how.append("leave")
        self.ended.set()


def waits(self: Scripted, _: Quiet) -> bool:
    assert self.ended.wait(WAIT_SECONDS)
    return False


def raising(error: Exception) -> Callable[[Scripted, Quiet], bool]:
    def work(_: Scripted, __: Quiet) -> bool:
        raise error

    return work


def together(
    members: Sequence[Member],
    is_stopping: Callable[[], bool] = lambda: False,
    more: Callable[[], Members] | None = None,
) -> bool:
    return Together(Quiet(CLOCK, -1), is_stopping, more).run(named(members))


def named(members: Sequence[Member]) -> list[tuple[str, Member]]:
    return [(f"broker {n}", member) for n, member in enumerate(members)]


@pytest.mark.parametrize("error", [EngineLost("gone"), EngineWanted("due"), ZeroDivisionError()])
def test_what_one_cannot_go_on_after_ends_all_and_comes_out(error: Exception) -> None:
    """The others say nothing: they are begun again."""
    other = Scripted(waits)
    with pytest.raises(type(error)):
        together([other, Scripted(raising(error))])
    assert set(other.how) == {"leave"}


def test_what_the_others_raise_while_they_end_does_not_hide_the_first() -> None:
    def lost_too(self: Scripted, quiet: Quiet) -> bool:
        waits(self, quiet)
        raise ZeroDivisionError

    with pytest.raises(EngineLost, match="first"):
        together([Scripted(lost_too), Scripted(raising(EngineLost("first")))])


def test_a_signal_stops_all() -> None:
    members = [Scripted(waits), Scripted(waits)]
    assert not together(members, lambda: True)
    assert [set(member.how) for member in members] == [{"stop"}, {"stop"}]


def test_one_that_was_quiet_for_long_enough_speaks_for_all() -> None:
    other = Scripted(waits)
    assert together([other, Scripted(lambda *_: True)])
    assert set(other.how) == {"leave"}


def test_who_comes_later_joins_also_where_nobody_was_there() -> None:
    joined, is_stopping = Scripted(waits), threading.Event()
    coming: list[list[Member]] = [[], [joined]]

    def more() -> Members:
        if coming:
            return named(coming.pop(0))
        is_stopping.set()
        return ()

    assert not together([], is_stopping.is_set, more)
    assert set(joined.how) == {"stop"}


def test_their_threads_have_their_names() -> None:
    names: list[str] = []

    def tells(_: Scripted, __: Quiet) -> bool:
        names.append(threading.current_thread().name)
        return True

    assert together([Scripted(tells)])
    assert names == [f"{SERVING}broker 0"]


def test_nobody_to_serve_and_nobody_to_come_is_an_end() -> None:
    assert not together([])


class Away:
    """A broker that is away, and then comes."""

    def __init__(self, times: int) -> None:
        self.left = times

    def greet(self) -> None:
        if self.left:
            self.left -= 1
            raise OwnerGone("away")


def test_a_broker_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; nobody knows where its directory is, so nothing is written."""
    away, made = Away(3), Scripted(lambda *_: True)
    greeting = Greeting(away.greet, lambda: made, CLOCK)
    assert together([greeting])
    said = [r.getMessage() for r in caplog.records]
    assert said == ["it is not served: away; waiting for it"]


@pytest.mark.parametrize("how", ["stop", "leave"])
@pytest.mark.parametrize("has_begun", [False, True])
def test_one_that_is_ended_passes_it_on(how: str, has_begun: bool) -> None:
    inner = Scripted(waits)
    made = threading.Event()

    def make() -> Scripted:
        made.set()
        return inner

    greeting = Greeting(Away(0 if has_begun else 1 << 30).greet, make, CLOCK)
    thread = threading.Thread(target=greeting.run, args=(Quiet(CLOCK, -1),))
    thread.start()
    assert not has_begun or made.wait(WAIT_SECONDS)
    {"stop": greeting.request_stop, "leave": greeting.leave}[how]()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert inner.how == ([how] if has_begun else [])


def test_a_broker_that_is_away_for_ever_keeps_no_engine() -> None:
    greeting = Greeting(Away(1 << 30).greet, lambda: Scripted(waits), CLOCK)
    assert Together(Quiet(CLOCK, 300), lambda: False).run(named([greeting]))


def test_three_directories_are_cleaned_by_one_engine(tmp_path: Path) -> None:
    """Rounds take turns where polling is the work, and nobody ends before all are quiet."""
    env, engine = env_of(CLOCK), InlineEngine(RealFs(), CLOCK)
    with ExitStack() as stack:
        members = []
        for name in "abc":
            data = tmp_path / name
            configs = make_logs(data, {"t": overwritten(), "u": overwritten()}, compacted(), CLOCK)
            owner = stack.enter_context(DirectoryOwner(data, configs, RealFs(), CLOCK))
            options = ServiceOptions(MEMORY, 20)
            members.append(Service(owner, engine, env, data, options))
        assert Together(Quiet(CLOCK, 200), lambda: False).run(named(members))
        for name in "abc":
            assert [len(records_in(tmp_path / name / log)) for log in ("t-0", "u-0")] == [10, 10]
            said = read_progress(tmp_path / name)
            assert said is not None
            assert said.state != STOPPED


class Alone(InlineEngine):
    """Notes two rounds at once; each waits for another one for a moment."""

    def __init__(self) -> None:
        super().__init__(RealFs(), CLOCK)
        self.met = False
        self._another = threading.Barrier(2)

    def _receipt(self, plan: RoundPlan) -> Receipt:
        try:
            self._another.wait(0.1)
        except threading.BrokenBarrierError:
            self._another.reset()
        else:
            self.met = True
        return super()._receipt(plan)


def test_rounds_in_this_process_take_turns(tmp_path: Path) -> None:
    """What one may use of memory is there once."""
    engine = Alone()
    with ExitStack() as stack:
        members = []
        for name in "ab":
            data = tmp_path / name
            topics = {topic: overwritten() for topic in "tuv"}
            configs = make_logs(data, topics, compacted(), CLOCK)
            owner = stack.enter_context(DirectoryOwner(data, configs, RealFs(), CLOCK))
            options = ServiceOptions(MEMORY, 20)
            members.append(Service(owner, engine, env_of(CLOCK), data, options))
        assert Together(Quiet(CLOCK, 100), lambda: False).run(named(members))
    assert not engine.met


def test_nobody_ends_before_all_have_looked_once(tmp_path: Path) -> None:
    """With an idle time of 0 one that has nothing to do would end the others before they began."""
    env, engine = env_of(CLOCK), InlineEngine(RealFs(), CLOCK)
    with ExitStack() as stack:
        services = {}
        for name, ratio in (("quiet", 1), ("due", 0.01)):
            data = tmp_path / name
            settings = compacted(min_cleanable_dirty_ratio=ratio)
            configs = make_logs(data, {"t": overwritten()}, settings, CLOCK)
            owner = stack.enter_context(DirectoryOwner(data, configs, RealFs(), CLOCK))
            services[name] = Service(owner, engine, env, data, ServiceOptions(MEMORY, 20))
        has_looked = tmp_path / "quiet" / PROGRESS

        def greet() -> None:
            until = CLOCK.monotonic() + WAIT_SECONDS
            while not has_looked.exists() and CLOCK.monotonic() < until:
                CLOCK.sleep(0.01)

        late = Greeting(greet, lambda: services["due"], CLOCK)
        assert Together(Quiet(CLOCK, 0), lambda: False).run(named([services["quiet"], late]))
        assert len(records_in(tmp_path / "due" / "t-0")) == 10


def test_work_of_one_wakes_all(tmp_path: Path) -> None:
    """There is one engine, and who sleeps shares it: all begin anew, with nothing said."""
    env = env_of(CLOCK)
    with ExitStack() as stack:
        members = []
        for name, ratio in (("quiet", 1), ("due", 0.01)):
            data = tmp_path / name
            settings = compacted(min_cleanable_dirty_ratio=ratio)
            configs = make_logs(data, {"t": overwritten()}, settings, CLOCK)
            owner = stack.enter_context(DirectoryOwner(data, configs, RealFs(), CLOCK))
            members.append(Service(owner, Asleep(), env, data, ServiceOptions(MEMORY, 20)))
        with pytest.raises(EngineWanted, match="rounds of 1 logs are due"):
            Together(Quiet(CLOCK, -1), lambda: False).run(named(members))
        said = read_progress(tmp_path / "quiet")
        assert said is None or said.state == "idle"
