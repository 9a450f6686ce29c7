"""No switch of cleanup.policy makes a flagged tombstone (KIP-87) a value, or a value a tombstone.

A flagged record is a tombstone where its topic compacts, and plain data where it does not. While a
log holds one, a switch between the two would change what the record is: "user-1 = erased by order
17" would be a live value, or a value would be removed at a tombstone's horizon. So the switch is
refused, with the reason. Called by `topics`, in a disk thread.

A properties file may be edited while the broker is down. The policy in it at the last start is kept
in the store; where a new one would be such a switch for a topic, the topic gets the last one as its
topic-level setting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from lapse.base.errors import ConfigError, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.partitions import Partitions
from lapse.metadata.image import Topic
from lapse.metadata.policies import BROKER_POLICY, POLICY
from lapse.metadata.settings import BrokerSettings

_log = logging.getLogger(__name__)

_BECOMES = {
    True: "tombstones with a value (KIP-87), which without compact would be live values; "
    "allowed once rounds have taken them",
    False: "values flagged as tombstones (KIP-87), which are plain data and would be deleted; "
    "allowed once retention or DeleteRecords has taken them",
}


def refuse_turning(partitions: Partitions, changes: Iterable[tuple[Topic, Topic]]) -> None:
    """Raise ConfigError where a change, of a topic as it is to what it shall be, is such one."""
    for before, after in changes:
        if before.config.compacts == after.config.compacts:
            continue
        held = _held(partitions, before)
        if held is not None:
            policy = ",".join(sorted(after.config.cleanup_policy))
            raise ConfigError(f"topic {before.name}: {POLICY}={policy}: {held}")


def kept_policies(
    partitions: Partitions, topics: Iterable[Topic], settings: BrokerSettings, last: str
) -> list[Topic]:
    """Topics whose flagged records the file's new policy would turn, with the `last` as their own.

    `topics` are those of the store, their logs open.
    """
    if BROKER_POLICY in settings.in_force.cluster or BROKER_POLICY in settings.in_force.broker:
        return []
    kept = []
    for topic in topics:
        if POLICY in topic.overrides:
            continue
        overrides = {**topic.overrides, POLICY: last}
        config, _ = settings.settled(overrides)
        if config.compacts == topic.config.compacts:
            continue
        held = _held(partitions, replace(topic, config=config))
        if held is not None:
            now = ",".join(sorted(topic.config.cleanup_policy))
            _log.error(
                "topic %s keeps %s=%s, as its own setting from now on; by %s=%s in the file: %s",
                topic.name, POLICY, last, BROKER_POLICY, now, held,
            )  # fmt: skip
            kept.append(replace(topic, overrides=overrides, config=config))
    return kept


def _held(partitions: Partitions, topic: Topic) -> str | None:
    """What is in the way of a switch; None if nothing is."""
    for number in range(topic.partitions):
        partition = TopicPartition(topic.name, number)
        if not partitions.is_online(partition):
            return f"{partition} is offline; allowed once it is known to hold no flagged tombstones"
        try:
            held = partitions.get(partition).state.holds_valued_tombstones()
        except StorageError as e:
            return f"whether {partition} holds flagged tombstones (KIP-87) is unknown: {e}"
        if held:
            return f"{partition} holds {_BECOMES[topic.config.compacts]}"
    return None
