"""Cancelling a round: a marker file in the round's folder, which every attempt checks for.

Any process that may write to the folder can create `<partition>/.lapse/<round>/cancelled`; no
message to the engine is needed, wherever its tasks run. An attempt checks before it begins and
whenever it reports progress, and fails with `Cancelled`. A round that has finished by then is not
cancelled.
"""

from __future__ import annotations

import os
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.fs import Fs
from lapse.lifecycle.round.receipt import attempt_dir

CANCELLED = "cancelled"


class Cancelled(LapseError):
    """The operator cancelled the round."""


def cancel_round(fs: Fs, log_dir: Path, round_id: str) -> None:
    """Cancel a round. Raises StorageError."""
    folder = attempt_dir(log_dir, round_id, "")
    fs.make_dir(folder)
    fs.write_file(folder / CANCELLED, b"")


def is_cancelled(log_dir: Path, round_id: str) -> bool:
    """Whether the round was cancelled; what a failing disk does not say was not."""
    return os.path.exists(attempt_dir(log_dir, round_id, "") / CANCELLED)


def require_not_cancelled(attempt_folder: Path) -> None:
    """Raise Cancelled if the round of this attempt was cancelled."""
    if os.path.exists(attempt_folder.parent / CANCELLED):
        raise Cancelled("cancelled by hand")
