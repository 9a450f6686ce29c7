"""What of the broker its replicas work with, and what is known of a partition that it leads."""

from __future__ import annotations

import sys
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
from lapse.metadata.image import Image, Topic
from lapse.metadata.partition_states import PartitionState
from lapse.replication.leader import LeaderReplicas

NO_READ_YET = sys.maxsize  # none has begun after what is being stored


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the broker replicas work with.

    Attributes:
        asking: where all waits that asks the cluster's store. It may not answer for long, and the
            threads of `disk` are few: clients read and write by them.
    """

    config: BrokerConfig
    partitions: Partitions
    disk: DiskThreads
    asking: DiskThreads
    clock: Clock
    purgatory: Purgatory
    members: Members
    peers: Peers
    quotas: ReplicationQuotas


@dataclass(slots=True)
class Leading:
    """A partition with several replicas that this broker leads.

    Attributes:
        unsure_at: nobody knows whether another state was stored, and this is the number of the last
            read of the store that had begun by then (`Image.read`): what it found may be older.
            None where that is known.
    """

    topic: Topic
    state: PartitionState
    log: PartitionLog
    replicas: LeaderReplicas
    unsure_at: int | None = None

    @property
    def unsure(self) -> bool:
        """Whether nobody knows what is stored."""
        return self.unsure_at is not None

    def is_settled_by(self, image: Image) -> bool:
        """Whether an image tells what became of a state that was to be stored."""
        return self.unsure_at is not None and self.unsure_at < image.read

    @property
    def is_asking(self) -> bool:
        """Whether another state may be stored by now, or soon."""
        return self.unsure or self.replicas.asked is not None
