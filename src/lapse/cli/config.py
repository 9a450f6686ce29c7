"""`lapse config check | show | alter`: settings of brokers, in a file and of running ones.

`check FILE` only looks: what a broker would make of a `server.properties`. All that is wrong is
told, not the first thing alone. A note is no fault: a name that Lapse does not heed, which may be
one of Kafka's (docs/compatibility.md) or one that is misspelt. Settings of the environment
(KAFKA_LOG_DIRS …) count as they would for a broker that is started here. Keys and certificates are
read as a broker reads them. Exit 0: nothing is wrong. 1: a broker would not start. 3: the file
cannot be read.

`show` says what is in force at a running broker and where it comes from; `alter` changes what can
be changed there, for all brokers or with --broker for one, until it is unset.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import (
    ALIASES,
    broker_config,
    check_broker_value,
    overlaid,
)
from lapse.base.environment import NAMES, is_heeded, misspelt_in, settings_in
from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import RealFs
from lapse.base.nearest import did_you_mean
from lapse.base.properties import server_properties
from lapse.base.security_settings import LISTENER_PREFIX, of_security
from lapse.broker.access.authentication import check_entrance, http_certificates
from lapse.broker.access.listeners import kafka_listeners
from lapse.broker.node import Node
from lapse.cli.config_running import add_running_verbs, run_at_brokers
from lapse.cli.tables import print_table
from lapse.log.env import LogEnv
from lapse.security.jaas import JAAS_CONFIG

WRONG, NOTE = "wrong", "note"
_OWN = "lapse."
EXAMPLES = """\
examples:
  lapse config check /etc/kafka/server.properties
  KAFKA_LOG_DIRS=/data lapse config check server.properties --json
  lapse config show                                    what differs from the defaults
  lapse config show log.retention.ms message.max.bytes --broker 2
  lapse config alter -c log.cleaner.delete.retention.ms=3600000
  lapse config alter --unset log.cleaner.delete.retention.ms
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said of a setting; "" is none of them alone."""

    state: str
    setting: str
    text: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    text = "what a broker would make of a file"
    check = verbs.add_parser("check", help=text, description=text)
    check.add_argument("config", type=Path, metavar="FILE", help="a server.properties")
    check.add_argument("--json", action="store_true", help="one JSON object a finding")
    add_running_verbs(verbs)


def run(args: argparse.Namespace) -> int:
    """What the verb says."""
    return _check(args) if args.verb == "check" else run_at_brokers(args)


def _check(args: argparse.Namespace) -> int:
    """Exit 1 where a broker would not start."""
    if not args.config.is_file():
        raise StorageError(f"{args.config}: no such file")
    given = server_properties(args.config)
    found = [*_of_environment(os.environ), *findings(overlaid(given, settings_in(os.environ)))]
    if args.json:
        for one in found:
            print(json.dumps(asdict(one)))
    elif found:
        print_table([(one.state, one.setting, one.text) for one in found])
    is_wrong = any(one.state == WRONG for one in found)
    if not args.json:
        print("a broker does not start with it" if is_wrong else "nothing is wrong with it")
    return 1 if is_wrong else 0


def findings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Setting by setting, in the order of the file; then what is wrong with them together."""
    wrong = []
    for name, text in settings.items():
        if (one := _finding(name, text)) is not None:
            wrong += [one] if one.state == WRONG else []
            yield one
    right = {n: text for n, text in settings.items() if n not in {one.setting for one in wrong}}
    try:
        config = broker_config(right)
        Node(config, LogEnv(RealFs(), SystemClock()))  # which opens nothing yet
        http_certificates(config.security)
        for listener in kafka_listeners(config):
            check_entrance(config, listener)
    except ConfigError as e:
        yield Finding(WRONG, "", str(e))


def _finding(name: str, text: str) -> Finding | None:
    """None where nothing is to be said of it, or only of all together."""
    if not is_heeded(name) and not name.startswith(_OWN):
        return Finding(NOTE, name, f"Lapse does not heed it{_meant(name)}")
    if of_security(name):
        return None
    try:
        check_broker_value(ALIASES.get(name, name), text)
    except ConfigError as e:
        return Finding(WRONG, name, str(e))
    return None


def _meant(name: str) -> str:
    if name == JAAS_CONFIG:
        return f": it goes by listener and mechanism, {LISTENER_PREFIX}NAME.MECHANISM.{name}"
    if name.startswith(LISTENER_PREFIX):
        name = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    return did_you_mean(name, NAMES)


def _of_environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    for variable, meant in misspelt_in(environment).items():
        yield Finding(NOTE, variable, f"names no setting; did you mean {meant}?")
