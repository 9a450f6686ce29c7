"""What of the broker its replicas work with, and what is known of a partition that it leads."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.broker.limits.replication_quotas import ReplicationQuotas
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory
from lapse.broker.replicas.peers import Peers
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import PartitionState
from lapse.replication.leader import LeaderReplicas


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the broker replicas work with."""

    config: BrokerConfig
    partitions: Partitions
    disk: DiskThreads
    clock: Clock
    purgatory: Purgatory
    members: Members
    peers: Peers
    quotas: ReplicationQuotas


@dataclass(slots=True)
class Leading:
    """A partition with several replicas that this broker leads.

    Attributes:
        unsure: nobody knows whether `replicas.asked` was stored.
    """

    topic: Topic
    state: PartitionState
    log: PartitionLog
    replicas: LeaderReplicas
    unsure: bool = False

    @property
    def is_asking(self) -> bool:
        """Whether another state may be stored by now, or soon."""
        return self.unsure or self.replicas.asked is not None
