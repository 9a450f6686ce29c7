"""How many branches of decisions and rounds the unit tests of the lifecycle take: at least 95 %.

The tests have left their files in a folder (`tests/covered.py`); kernels are compiled and do not
count, nor does what only a type checker reads.
"""

from __future__ import annotations

from pathlib import Path

import coverage

PERCENT_MIN = 95.0
SOURCE = Path(__file__).resolve().parent.parent / "src" / "lapse" / "lifecycle"
PACKAGES = ("decide", "round")


def percents(folder: Path) -> dict[str, float]:
    """By package, of all its statements and branches together, as coverage.py counts them."""
    found = coverage.Coverage(f"{folder}/covered", branch=True, config_file=False)
    found.exclude(r"if TYPE_CHECKING:")
    found.exclude(r"^\s*\.\.\.$")
    found.combine([str(folder)])
    nowhere = (folder / "report.txt").open("w")
    with nowhere:
        return {
            package: round(found.report(file=nowhere, include=f"{SOURCE / package}/*"), 1)
            for package in PACKAGES
        }
