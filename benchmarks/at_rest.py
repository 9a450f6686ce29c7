"""What `lapse up` takes of memory while no round is due: the sum over its processes.

    .venv/bin/python -m benchmarks.at_rest [--seconds 30]

Proportional set sizes, so that what processes share counts once; of this run alone, so no other
Lapse may run. After the start, and after one record was written and read and the dashboard was
looked at. Writes `benchmarks/results/at-rest.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.common import save
from lapse.client.admin import Admin
from lapse.client.consumer import Consumer, ConsumerConfig
from lapse.client.producer import Producer

LAPSE = Path(sys.prefix) / "bin" / "lapse"


def main() -> None:
    """Start, wait, count; use it, wait, count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as data:
        up = subprocess.Popen(
            [LAPSE, "up", "--data", f"{data}/d", "--port", "0", "--http-port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert up.stdout is not None
            ready = re.match(r"ready kafka=(\S+) http=(\S+)", up.stdout.readline())
            assert ready is not None
            time.sleep(seconds)
            idle = _pss_mib(up.pid)
            asyncio.run(_use(ready[1]))
            urllib.request.urlopen(f"http://{ready[2]}/ui").read()
            time.sleep(seconds)
            used = _pss_mib(up.pid)
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)
    sums = {"started": sum(idle.values()), "used": sum(used.values())}
    save("at-rest", {"pss_mib": {"started": idle, "used": used}, "sums": sums})


async def _use(bootstrap: str) -> None:
    async with await Admin.open(bootstrap) as admin:
        await admin.create_topic("t", configs={"cleanup.policy": "compact"})
    async with Producer(bootstrap) as producer:
        await (await producer.send("t", b"k", b"v"))
    async with Consumer(bootstrap, ConsumerConfig()) as consumer:
        (partition,) = [one for one in await consumer.partitions() if one.topic == "t"]
        await consumer.assign({partition: 0})
        assert await consumer.poll(timeout_ms=10_000)


def _pss_mib(root: int) -> dict[str, int]:
    """By what the process is: `up`, `broker`, `lifecycle`, or the program's name."""
    found: dict[str, int] = {}
    for pid in _tree(root):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        name = next((one for one in ("up", "broker", "lifecycle") if one in words), words[0])
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        found[name] = found.get(name, 0) + round(kib / 1024)
    return found


def _tree(root: int) -> list[int]:
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    return [root, *(pid for child in children for pid in _tree(int(child)))]


if __name__ == "__main__":
    main()
