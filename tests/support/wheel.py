"""Lapse as pip installs it: built from the tree, in an environment without our tests' packages."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from lapse.kernels.jit import CACHE_DIR

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "uv.lock")
SECONDS_MAX = 120
FIND_UV = runpy.run_path(str(ROOT / "tools" / "bootstrap.py"))["find_uv"]  # on any Python


class Installed(NamedTuple):
    """A virtual environment; its compiled kernels are those of this one, as the code is."""

    prefix: Path
    environment: dict[str, str]

    @property
    def lapse(self) -> Path:
        """The command."""
        return self.prefix / "bin" / "lapse"

    def run(self, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """`lapse` with these words, to its end."""
        return subprocess.run(
            [self.lapse, *map(str, words)], cwd=cwd, env=self.environment,
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip


def uv(*words: object, **environment: str) -> None:
    """Run it; fetches nothing where uv has kept what the environment of this was made from."""
    command = [FIND_UV(str(ROOT)), *map(str, words), "--quiet"]
    for more, is_last in ((["--offline"], False), ([], True)):
        done = subprocess.run(
            [*command, *more], env={**os.environ, **environment}, cwd=ROOT, check=is_last,
            timeout=SECONDS_MAX, stderr=None if is_last else subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode == 0:
            return


def copy_of_the_tree(to: Path) -> Path:
    """What a distribution is built from."""
    shutil.copytree(ROOT / "src", to / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_FROM:
        shutil.copyfile(ROOT / name, to / name)
    return to


def build(tree: Path, to: Path, *kinds: str) -> Path:
    """The wheel (`--wheel`), by way of a source distribution where no kind is named."""
    uv("build", *kinds, "--out-dir", to, tree)
    [wheel] = to.glob("*.whl")
    return wheel


def install(wheel: Path, prefix: Path, *extras: str) -> Installed:
    """What the wheel's metadata and the lock say that pip brings, and the wheel."""
    wanted = [word for extra in extras for word in ("--extra", extra)]
    uv("sync", "--frozen", "--no-default-groups", "--no-install-project", *wanted,
       "--python", sys.executable, UV_PROJECT_ENVIRONMENT=str(prefix))  # fmt: skip
    uv("pip", "install", "--no-deps", "--python", prefix / "bin" / "python", wheel)
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    assert CACHE_DIR is not None
    return Installed(prefix, {**environment, "LAPSE_KERNEL_CACHE": str(CACHE_DIR.parent)})
