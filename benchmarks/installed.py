"""What an installation takes on disk, alone and with each extra.

    .venv/bin/python -m benchmarks.installed

Each in an environment of its own, from the lock file and what uv has kept; bytes as `du` counts
them, with no file compiled yet. Writes `benchmarks/results/installed.json`.
"""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path

from benchmarks.common import save
from tests.support.wheel import ROOT, build, install

MB = 1_000_000


def main() -> None:
    """Install, count, remove."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        wheel = build(ROOT, at / "dist", "--wheel")
        wheel_mb = round(wheel.stat().st_size / MB, 1)
        found = {"base": _installed(wheel, at / "base")}
        for extra in extras:
            found[extra] = _installed(wheel, at / extra, extra)
    save("installed", {"wheel_mb": wheel_mb, "installed": found})


def _installed(wheel: Path, at: Path, *extras: str) -> dict[str, int]:
    install(wheel, at, *extras)
    packages = at.glob("lib/python*/site-packages/*.dist-info")
    files = [path for path in at.rglob("*") if path.is_file() and not path.is_symlink()]
    total = sum(path.stat().st_blocks * 512 for path in files)
    return {"mb": round(total / MB), "packages": len(list(packages))}


if __name__ == "__main__":
    main()
