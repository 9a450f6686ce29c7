"""What a service does, read from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.lifecycle.asked import EVERY_LOG, Pause, pause
from lapse.lifecycle.reports import PROGRESS, Queue, ServiceProgress, write_progress, write_queue
from lapse.lifecycle.status import SILENT_MS, Status, is_running, read_status

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


@pytest.mark.parametrize(
    ("told", "running"),
    [
        (ServiceProgress("running", "", 1, NOW - SILENT_MS), True),
        (ServiceProgress("running", "", 1, NOW - SILENT_MS - 1), False),
        (ServiceProgress("stopped", "", 1, NOW), False),
        (ServiceProgress("idle", "", 1, NOW - SILENT_MS - 9, next_look_ms=NOW), True),
    ],
)
def test_one_that_is_silent_for_longer_than_it_said_is_gone(
    told: ServiceProgress, running: bool
) -> None:
    assert is_running(told, NOW) is running


def test_a_file_of_somebody_elses_is_named(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_bytes(b"{}")
    with pytest.raises(CorruptData, match=PROGRESS):
        read_status(tmp_path, NOW)
