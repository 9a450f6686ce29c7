"""Installs what the wider tests use and pip cannot bring: `make deps`.

Only where that needs no question: as root, with apt. Elsewhere it says in one line what is
missing, and the tests that need it skip with one line of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

# command -> Debian package
WANTED: Mapping[str, str] = {
    "javac": "default-jdk-headless",  # compiles the oracle
    "mvn": "maven",  # brings the jars of real Kafka
    "kcat": "kcat",  # a stock client
    "node": "nodejs",  # runs kafkajs
    "npm": "npm",  # brings kafkajs
    "go": "golang-go",  # builds franz-go and sarama; they ask for 1.26
    "cc": "build-essential",  # what makes disks fail in `make chaos`
    "unzip": "unzip",  # the oracle's build looks into a jar
    "zsh": "zsh",  # these two complete what is typed
    "fish": "fish",
}


def missing(present: Sequence[str]) -> list[str]:
    """Packages whose command is not among those present."""
    return [package for command, package in WANTED.items() if command not in present]


def plan(packages: Sequence[str], *, is_root: bool, has_apt: bool) -> tuple[str, bool]:
    """What to say, and whether to install."""
    if not packages:
        return "everything is there", False
    names = " ".join(packages)
    if not has_apt:
        return f"no apt here: to run every test, install what Debian calls {names}", False
    if not is_root:
        return f"not root: to run every test, run apt-get install {names}", False
    return f"installing {names}", True


def main() -> int:
    present = [command for command in WANTED if shutil.which(command)]
    packages = missing(present)
    text, install = plan(
        packages, is_root=os.geteuid() == 0, has_apt=shutil.which("apt-get") is not None
    )
    print(f"deps: {text}", flush=True)
    if not install:
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "-y", "--no-install-recommends", "install", *packages],
    ):
        code = subprocess.call(command, env=environment, stdout=subprocess.DEVNULL)
        if code != 0:
            print(f"deps: {' '.join(command)} ended with {code}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
