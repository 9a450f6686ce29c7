"""Which branches of decisions and rounds the tests of a process take, if LAPSE_COVERAGE says where.

Imported before anything of Lapse is: what a module does while it is imported counts too. Each
process of a run leaves a file of its own; `tools/run_tests.py` adds them up.
"""

from __future__ import annotations

import os

PACKAGES = ("lapse.lifecycle.decide", "lapse.lifecycle.round")

_measuring = None
if folder := os.environ.get("LAPSE_COVERAGE"):
    import coverage

    _measuring = coverage.Coverage(
        f"{folder}/covered", data_suffix=True, branch=True, config_file=False, source_pkgs=PACKAGES
    )
    # A process that only leads others imports nothing of it.
    _measuring.set_option("run:disable_warnings", ["module-not-imported", "no-data-collected"])
    _measuring.start()


def end() -> None:
    """Write down what was seen."""
    if _measuring is not None:
        _measuring.stop()
        _measuring.save()
