"""What a service does, read from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.lifecycle.status.pauses import EVERY_LOG, PAUSES, Pause, pause
from lapse.lifecycle.status.reports import (
    PROGRESS,
    SILENT_MS,
    Queue,
    ServiceProgress,
    write_progress,
    write_queue,
)
from lapse.lifecycle.status.snapshot import Status, read_status

NOW = 1_700_000_000_000


def test_a_directory_where_no_service_ever_was(tmp_path: Path) -> None:
    nothing = Status(NOW, running=False, service=None, queue=Queue(), pauses=())
    assert read_status(tmp_path, NOW) == nothing


def test_all_that_its_files_say(tmp_path: Path) -> None:
    told, queue = ServiceProgress("idle", "", 1, NOW - 5), Queue(NOW, 0, ("a-0",))
    said = Pause(EVERY_LOG, NOW)
    write_progress(RealFs(), tmp_path, told)
    write_queue(RealFs(), tmp_path, queue)
    pause(RealFs(), tmp_path, [], said)
    assert read_status(tmp_path, NOW) == Status(NOW, True, told, queue, (said,))


def test_pauses_that_cannot_be_read_pause_every_log(tmp_path: Path) -> None:
    """As they do for the service: whoever looks must see why no round runs."""
    told = ServiceProgress("paused", "", 1, NOW - 5)
    write_progress(RealFs(), tmp_path, told)
    (tmp_path / PAUSES).write_text("{")
    status = read_status(tmp_path, NOW)
    assert (status.running, status.service) == (True, told)
    [found] = status.pauses
    assert found.log == EVERY_LOG
    assert PAUSES in found.reason


@pytest.mark.parametrize("state", ["stopped", "running"])
def test_who_does_not_run_has_no_queue(tmp_path: Path, state: str) -> None:
    """A service that was killed says for ever that it is at work, and leaves its queue behind."""
    told = ServiceProgress(state, "", 1, NOW)
    write_progress(RealFs(), tmp_path, told)
    write_queue(RealFs(), tmp_path, Queue(NOW, 1, ("a-0", "b-0")))
    later_ms = NOW + SILENT_MS + 1
    assert read_status(tmp_path, later_ms) == Status(later_ms, False, told, Queue(), ())


def test_a_file_of_somebody_elses_is_named(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_bytes(b"{}")
    with pytest.raises(CorruptData, match=PROGRESS):
        read_status(tmp_path, NOW)
