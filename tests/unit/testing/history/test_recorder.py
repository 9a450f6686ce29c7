"""What a recorder notes is what was done, in an order that a judge takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.testing.clock import ManualClock
from lapse.testing.history.events import (
    HEADER,
    Event,
    Isolation,
    Outcome,
    Promised,
    Read,
    ReadTo,
    Sent,
    digest,
)
from lapse.testing.history.judge import judge
from lapse.testing.history.lines import of_lines
from lapse.testing.history.promise import Promise
from lapse.testing.history.recorder import HistoryFile, Recorder, named
from lapse.testing.history.verdict import Fault

NOW = 1_000_000
TOPIC = "prices"


def recorded() -> tuple[Recorder, list[Event], ManualClock]:
    events: list[Event] = []
    clock = ManualClock(NOW)
    return Recorder(events.append, clock), events, clock


def test_a_producers_records_have_names_and_its_transactions_numbers() -> None:
    recorder, events, clock = recorded()
    wrote = recorder.producer("p")
    assert wrote.sending(TOPIC, 0, b"a", b"1") == (0, [(HEADER, b"p#0")])
    wrote.begins()
    clock.advance(5)
    assert wrote.sending(TOPIC, -1, b"a", None, timestamp_ms=7) == (1, [(HEADER, b"p#1")])
    wrote.ends(Outcome.ABORTED)
    wrote.ends(Outcome.COMMITTED)  # there is none
    wrote.begins()
    wrote.sending(TOPIC, 0, b"a", b"2")
    sent = [event for event in events if isinstance(event, Sent)]
    assert sent[0] == Sent(NOW, "p", 0, TOPIC, 0, b"a", digest(b"1"))
    assert sent[1] == Sent(NOW + 5, "p", 1, TOPIC, -1, b"a", None, 7, "1")
    assert [s.transaction for s in sent] == [None, "1", "2"]
    assert len(events) == 4


def test_a_history_that_was_recorded_is_judged() -> None:
    recorder, events, clock = recorded()
    recorder.promised(TOPIC, Promise(compacts=False))
    wrote = recorder.producer("p")
    headers = []
    for n, value in enumerate((b"1", b"2", b"3")):
        number, more = wrote.sending(TOPIC, 0, b"a", value)
        headers.append(more)
        if n < 2:
            wrote.acknowledged(number, 0, n)
        else:
            wrote.failed(number, "gone")
    clock.advance(10)
    recorder.deleted(recorder.now_ms(), TOPIC, 0, 1)
    clock.advance(10)
    recorder.disturbed("kill")
    recorder.quiet()
    run = recorder.reader("r").begins(TOPIC, 0, 1, Isolation.COMMITTED, from_start=True)
    run.read(1, headers[1], b"a", b"2", 5)
    run.reached(2, at_end=True)
    verdict = judge(events)
    assert verdict.findings == ()
    assert (verdict.acknowledged, verdict.unknown, verdict.reads) == (2, 1, 1)
    run = recorder.reader("r").begins(TOPIC, 0, 0, Isolation.COMMITTED)
    run.read(0, headers[0], b"a", b"1")
    assert [f.fault for f in judge(events).findings] == [Fault.RESURRECTED]


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(HEADER, b"p#7")], ("p", 7)),
        ([("other", b"x"), (HEADER, b"a#b#0")], ("a#b", 0)),
        ([], ("", -1)),
        ([(HEADER, None)], ("", -1)),
        ([(HEADER, b"7")], ("", -1)),
        ([(HEADER, b"p#-7")], ("", -1)),
        ([(HEADER, b"\xff")], ("", -1)),
        ([(HEADER, "p#²".encode())], ("", -1)),  # digits, and no number
        ([(HEADER, "p#٣".encode())], ("", -1)),
        ([(HEADER, b"p#" + b"9" * 5000)], ("", -1)),
    ],
)
def test_who_a_record_is_by_its_headers(
    headers: list[tuple[str, bytes | None]], name: tuple[str, int]
) -> None:
    assert named(headers) == name


def test_a_history_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for n in range(2):
        file = HistoryFile(RealFs(), path)
        recorder = Recorder(file, ManualClock(NOW + n))
        recorder.promised(TOPIC, Promise(compacts=True))
        recorder.reader("r").begins(TOPIC, 0, 0, Isolation.FILES).read(3, [], None, b"x")
        recorder.reader("r").begins(TOPIC, 0, 0, Isolation.FILES).reached(4)
        file.close()
    events = list(of_lines(path.read_bytes().splitlines(keepends=True)))
    assert len(events) == 10
    assert events[0] == Promised(NOW, TOPIC, Promise(compacts=True))
    assert events[7] == Read(NOW + 1, "r", TOPIC, 0, 3, "", -1, None, digest(b"x"), -1)
    assert events[9] == ReadTo(NOW + 1, "r", TOPIC, 0, 4)
