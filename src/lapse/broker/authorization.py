"""Who may ask what: Kafka's table of APIs, in one place, around the handlers.

A rule gets the request before its handler does. It asks the authorizer of the resources that the
request names, hands on what may be, and puts refusals in the answer for what may not: handlers know
nothing of it. Where there is no authorizer, requests go to their handlers straight away; only the
answers that tell authorized operations (KIP-430) go through their rules.

| asked | needs |
|---|---|
| Produce | WRITE topic; WRITE transactional id |
| Fetch, DescribeProducers | READ topic |
| ListOffsets | DESCRIBE topic |
| OffsetForLeaderEpoch | DESCRIBE topic, or CLUSTER_ACTION cluster |
| Metadata, DescribeTopicPartitions | DESCRIBE topic; as CreateTopics where asking creates |
| CreateTopics | CREATE cluster or topic; DESCRIBE_CONFIGS topic, to be told its settings |
| DeleteTopics, DeleteRecords | DELETE topic |
| CreatePartitions | ALTER topic |
| DescribeConfigs | DESCRIBE_CONFIGS of topic, cluster or group |
| AlterConfigs, IncrementalAlterConfigs | ALTER_CONFIGS of the same |
| FindCoordinator | DESCRIBE group or transactional id |
| Join-, Sync-, LeaveGroup, Heartbeat | READ group |
| ConsumerGroupHeartbeat | READ group; DESCRIBE topics |
| DescribeGroups, ConsumerGroupDescribe | DESCRIBE group (and topics) |
| ListGroups | DESCRIBE cluster or group |
| DeleteGroups | DELETE group |
| OffsetCommit | READ group, READ topic |
| OffsetFetch | DESCRIBE group, DESCRIBE topic |
| OffsetDelete | DELETE group, READ topic |
| InitProducerId | WRITE transactional id; or IDEMPOTENT_WRITE cluster, or WRITE some topic |
| AddPartitionsToTxn, EndTxn | WRITE transactional id; WRITE topics |
| AddOffsetsToTxn, TxnOffsetCommit | the same; READ group, READ topics |
| DescribeTransactions, ListTransactions | DESCRIBE transactional id (and topics) |
| WriteTxnMarkers | CLUSTER_ACTION or ALTER cluster |
| ACLs, SCRAM credentials | DESCRIBE or ALTER cluster |
| quotas | DESCRIBE_CONFIGS or ALTER_CONFIGS cluster |
| log directories, reassignments, elections | DESCRIBE or ALTER cluster |

Refusals are of each item where the request has items (partitions, topics, groups, keys, resources),
else of the request; a Produce with acks=0 ends its connection. Lists of all leave out what may not
be described. What may not be described is refused alike whether it is there or not.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from lapse.broker import authorized_cluster, authorized_groups, authorized_topics
from lapse.broker.asker import Asker, Rule
from lapse.broker.services import Handler, Services, Session
from lapse.security.authorizer import AllowAll
from lapse.wire.schema.api_versions import API_VERSIONS
from lapse.wire.schema.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from lapse.wire.schema.describe_cluster import DESCRIBE_CLUSTER
from lapse.wire.schema.describe_groups import DESCRIBE_GROUPS
from lapse.wire.schema.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from lapse.wire.schema.metadata import METADATA
from lapse.wire.schema.sasl_authenticate import SASL_AUTHENTICATE
from lapse.wire.schema.sasl_handshake import SASL_HANDSHAKE

# By API key; these ask for nothing.
_FREE = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
RULES: Mapping[int, Rule | None] = {
    **{api.key: None for api in _FREE},
    **authorized_topics.RULES,
    **authorized_groups.RULES,
    **authorized_cluster.RULES,
}

# Their answers tell what the client may do, also where it may do everything.
_TELLING = frozenset(
    api.key
    for api in (
        METADATA,
        DESCRIBE_GROUPS,
        CONSUMER_GROUP_DESCRIBE,
        DESCRIBE_CLUSTER,
        DESCRIBE_TOPIC_PARTITIONS,
    )
)


def authorized(
    services: Services, session: Session, key: int, version: int, request: Any, handler: Handler
) -> Coroutine[Any, Any, Any]:
    """The handler's answer to what may be asked, with refusals of the rest."""
    rule = RULES[key]
    authorizer = services.access.authorizer
    if rule is None or (isinstance(authorizer, AllowAll) and key not in _TELLING):
        return handler(services, session, version, request)
    asker = Asker(authorizer, session.actor, services)
    return rule(asker, version, request, partial(handler, services, session, version))
