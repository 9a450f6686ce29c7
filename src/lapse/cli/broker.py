"""`lapse broker CONFIG`: one broker in the foreground, configured by a `server.properties`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import BrokerConfig, broker_config, overlaid
from lapse.base.environment import misspelt_in, settings_in
from lapse.base.fs import RealFs
from lapse.base.properties import server_properties
from lapse.base.scheduling import take_short_slices
from lapse.broker.limits.connections import raise_open_files
from lapse.broker.node import Node
from lapse.cli.log_format import set_up_logs
from lapse.log.env import LogEnv
from lapse.web.app import routes

EXAMPLES = """\
examples:
  lapse broker server.properties
  with  log.dirs=/var/lib/lapse  and  listeners=PLAINTEXT://127.0.0.1:9092
  KAFKA_LISTENERS=PLAINTEXT://:9092 lapse broker server.properties   as in Apache's image

Prints `ready kafka=HOST:PORT http=HOST:PORT` when serving; SIGTERM and SIGINT stop it cleanly.
"""


logger = logging.getLogger(__name__)

# The event loop releases the GIL with each system call, and a computing thread, such as a commit of
# many segments, then keeps it for this long: Python's default is 5 ms, per system call.
SWITCH_SECONDS = 0.0001


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a server.properties")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    config = broker_config(overlaid(server_properties(args.config), settings_in(os.environ)))
    set_up_logs(config.log_format)
    for variable, meant in misspelt_in(os.environ).items():
        logger.warning("%s names no setting; did you mean %s?", variable, meant)
    logger.info("up to %d files may be open", raise_open_files())
    sys.setswitchinterval(SWITCH_SECONDS)
    take_short_slices()
    asyncio.run(serve(config))
    return 0


async def serve(config: BrokerConfig) -> None:
    """Start a node, print its ready line, and stop it at the first SIGTERM or SIGINT."""
    clock = SystemClock()
    node = Node(config, LogEnv(RealFs(), clock), pages=partial(routes, clock=clock))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop)
    try:
        gc.disable()  # the node's objects live as long as the node: a search finds no garbage
        await node.start()
        gc.freeze()
        gc.enable()
        print(node.ready_line(), flush=True)
        await node.wait_for_stop_request()
    finally:
        gc.enable()
        await node.stop()
