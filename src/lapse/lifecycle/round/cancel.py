"""A round that somebody called off: a marker in its folder, which every attempt at it looks for.

`<partition>/.lapse/<round>/cancelled` may be written by anybody who may write there; no engine has
to be told, wherever its tasks are. An attempt looks before it begins and whenever it tells how far
it is, and comes to nothing by `Cancelled`. A round that was through by then was not cancelled.
"""

from __future__ import annotations

import os
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.fs import Fs
from lapse.lifecycle.round.receipt import attempt_dir

CANCELLED = "cancelled"


class Cancelled(LapseError):
    """Somebody called the round off."""

    def __init__(self) -> None:
        super().__init__("cancelled by hand")


def cancel_round(fs: Fs, log_dir: Path, round_id: str) -> None:
    """Call a round off. Raises StorageError."""
    folder = attempt_dir(log_dir, round_id, "")
    fs.make_dir(folder)
    fs.write_file(folder / CANCELLED, b"")


def is_cancelled(log_dir: Path, round_id: str) -> bool:
    """Whether somebody has."""
    return (attempt_dir(log_dir, round_id, "") / CANCELLED).exists()


def require_wanted(attempt_folder: Path) -> None:
    """What an attempt asks of its own folder. Raises Cancelled."""
    if os.path.exists(attempt_folder.parent / CANCELLED):
        raise Cancelled
