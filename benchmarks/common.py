"""What every benchmark says of where and what it ran, and where results are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
KIB, MIB = 1 << 10, 1 << 20


def machine() -> dict[str, Any]:
    """Processor, cores, memory, Python: enough to know two results apart."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(x, 2) for x in os.getloadavg()],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def commit() -> str:
    """The commit measured, `+` if the tree differs from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "src") else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def save(name: str, result: dict[str, Any], *, show: bool = True) -> None:
    """Keep a result as JSON, and print it."""
    whole = {
        "benchmark": name,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "machine": machine(),
        **result,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(whole, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    if show:
        sys.stdout.write(text + "\n")
