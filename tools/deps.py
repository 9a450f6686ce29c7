"""Installs what the wider tests use and pip cannot bring: `make deps`.

Only where that needs no question: as root, with apt. Elsewhere it says in one line what is
missing, and the tests that need it skip with one line of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    "systemd-analyze": "systemd",  # judges our units
    "zsh": "zsh",  # these two complete what is typed
    "fish": "fish",
    "chromium": "chromium",  # shows the pages; brings a font
}

# Programs of packages that bring a service along: only the file is taken, into build/bin.
UNPACKED: Mapping[str, tuple[str, str]] = {
    "promtool": ("prometheus", "usr/bin/promtool"),  # has alerts fire
}
BIN = Path(__file__).resolve().parent.parent / "build" / "bin"


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


def unpack(command: str) -> bool:
    """Download its package and take the one file out of it; whether that worked."""
    package, path = UNPACKED[command]
    print(f"deps: taking {command} out of {package}", flush=True)
    fetch = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.call(fetch, cwd=folder) != 0:
            subprocess.call(["apt-get", "-qq", "update"])  # it may know no packages yet
            if subprocess.call(fetch, cwd=folder) != 0:
                return False
        [archive] = Path(folder).glob("*.deb")
        if subprocess.call(["dpkg-deb", "-x", str(archive), folder]) != 0:
            return False
        BIN.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(folder) / path, BIN / command)
    return True


def main() -> int:
    code = install_packages()
    has_apt = shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None
    for command in UNPACKED if has_apt else ():
        if not (BIN / command).exists() and not unpack(command):
            print(f"deps: no {command}: the tests that need it skip", flush=True)
    return code


def install_packages() -> int:
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
