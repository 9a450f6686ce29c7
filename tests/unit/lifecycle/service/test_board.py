"""What the service writes, and a disk that fails where it reads: that stops no round of it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.clock_guard import CONFIRMED
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.round.cancel import CANCELLED
from lapse.lifecycle.round.engine import EngineLost
from lapse.lifecycle.status.reports import ROUNDS, Queue, read_queue, read_reports, write_queue
from lapse.lifecycle.status.wishes import wish
from tests.support.lifecycle.rounds import overwritten
from tests.support.lifecycle.served import Parts, parts
from tests.unit.lifecycle.status.test_pauses import Asking

IO_ERROR = OSError(errno.EIO, "Input/output error")


def broken_for(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """As the real function, but for files of that name."""

    def looked_at(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | Path) and Path(path).name == name:
            raise IO_ERROR
        return real(path, *args, **kwargs)

    return looked_at


@pytest.mark.parametrize("name", [ROUNDS, CONFIRMED])
def test_a_file_that_cannot_be_looked_at_stops_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        monkeypatch.setattr(os, "stat", broken_for(name, os.stat))
        p.service.step()
        assert len(p.records("a-0")) == 10


def test_reports_that_cannot_be_read_back_stop_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        (p.data / ROUNDS).write_bytes(b"torn")
        monkeypatch.setattr(Path, "open", broken_for(ROUNDS, Path.open))
        p.service.step()
        assert len(p.records("a-0")) == 10
        assert "rounds are not reported" in caplog.text


def test_a_round_is_not_taken_for_cancelled_where_the_disk_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        p.engine.failing["a-0"] = "no luck"
        monkeypatch.setattr(os, "stat", broken_for(CANCELLED, os.stat))
        p.service.step()
        assert [(one.error, one.cancelled) for one in read_reports(p.data)] == [("no luck", False)]


def test_a_wish_that_cannot_be_ended_ends_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Network file systems may have no locks left."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        wish(RealFs(), p.data, ["a-0"], p.clock.now_ms())
        monkeypatch.setattr(fcntl, "flock", no_locks)
        p.service.step()
        assert len(p.records("a-0")) == 10
        assert "a wish is not ended" in caplog.text


def test_a_service_that_was_stopped_leaves_no_queue(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten(), "b": overwritten()}) as p:
        p.engine = engine = Asking(p.clock, None)
        service = p.serve()
        engine.say = service.request_stop
        service.run()
        assert len(p.engine.runs) == 1
        assert read_queue(p.data) == Queue()


def test_a_service_whose_engine_was_lost_leaves_no_queue(tmp_path: Path) -> None:
    """Another engine comes after minutes."""

    def lose() -> None:
        raise EngineLost("the JVM is gone")

    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        with pytest.raises(EngineLost):
            p.serve(engine=Asking(p.clock, lose)).run()
        assert read_queue(p.data) == Queue()


def test_who_waits_for_the_broker_or_the_clock_has_no_queue(tmp_path: Path) -> None:
    with parts(tmp_path / "data", {"a": overwritten()}) as p:
        for step in (leave, jump):
            write_queue(RealFs(), p.data, Queue(1, 1, ("a-0",)))
            service = p.serve()
            with pytest.MonkeyPatch.context() as patch:
                step(p, patch)
                service.step()
            assert read_queue(p.data) == Queue(), step


def leave(p: Parts, patch: pytest.MonkeyPatch) -> None:
    """The broker is away."""

    def nobody() -> None:
        raise OwnerGone("no broker answers")

    patch.setattr(p.owner, "logs", nobody)


def jump(p: Parts, _: pytest.MonkeyPatch) -> None:
    """The clock is not believed."""
    p.serve().step()
    p.clock.jump(30 * 86_400_000)
    write_queue(RealFs(), p.data, Queue(1, 1, ("a-0",)))
