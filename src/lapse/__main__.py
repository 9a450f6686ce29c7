"""`python -m lapse`: the command, where the folder of scripts is not on PATH."""

from __future__ import annotations

import sys

from lapse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
