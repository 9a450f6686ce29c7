"""The broker beside real Kafka: the same clients, the same machine, one run.

    python -m benchmarks.broker [stock] [frames] [end-to-end] [overload] [size] [partitions]

CPU seconds of the broker process for each GB of values come first, since the client takes most of
the machine; then MB/s as the client saw them. Real Kafka comes from Maven; where that cannot be
had, our figures are recorded alone. Without words everything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from benchmarks.broker import frames, size, stock
from benchmarks.broker.overload import overload
from benchmarks.broker.peers import both
from benchmarks.common import RESULTS, save
from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import RealKafka

PARTITIONS = (1, 100)
MAKERS = {"lapse": BrokerProcess, "kafka": RealKafka}


def main() -> None:
    """Measure what is asked for, and keep the result; what was not asked for stays as it was."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--many", type=int, default=10_000, help="partitions (%(default)s)")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a start shall not compile, as for any user
    path = RESULTS / "broker.json"
    figures = json.loads(path.read_text()).get("figures", {}) if path.exists() else {}
    for what in args.what or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            figures[what] = PARTS[what](Path(directory), args)
        save("broker", {"figures": figures}, show=False)
        print(json.dumps({what: figures[what]}, indent=1))


def _stock(directory: Path, _: argparse.Namespace) -> list[dict[str, Any]]:
    with both(directory) as peers:
        return [row for n in PARTITIONS for row in stock.throughput(peers, n)]


def _frames(directory: Path, _: argparse.Namespace) -> list[dict[str, Any]]:
    with both(directory) as peers:
        return [row for n in PARTITIONS for row in frames.latencies(peers, n)]


def _end_to_end(directory: Path, _: argparse.Namespace) -> dict[str, Any]:
    with both(directory) as peers:
        return {name: stock.end_to_end(peer) for name, peer in peers.items()}


def _size(directory: Path, _: argparse.Namespace) -> dict[str, Any]:
    return {name: size.memory_and_start(make, directory / name) for name, make in MAKERS.items()}


def _partitions(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    figures["lapse"] = size.many_partitions(BrokerProcess, directory / "lapse", args.many)
    try:
        figures["kafka"] = size.many_partitions(RealKafka, directory / "kafka", args.many)
    except (KafkaException, RuntimeError) as e:  # its failure is a figure too
        figures["kafka"] = {"partitions": args.many, "failed": str(e).partition("\n")[0]}
    return figures


PARTS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "stock": _stock,
    "frames": _frames,
    "end-to-end": _end_to_end,
    "overload": lambda directory, _: overload(directory),
    "size": _size,
    "partitions": _partitions,
}

if __name__ == "__main__":
    main()
