"""Settings of clusters of several brokers: their rows in the table."""

from __future__ import annotations

from lapse.base.setting import (
    BOOLEAN,
    INT_MAX,
    LONG_MAX,
    MESSAGE_FORMAT,
    TEXT,
    THROTTLED,
    Setting,
    one_of,
    whole,
)

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

REPLICATION_SETTINGS: tuple[Setting, ...] = (
    Setting("inter.broker.protocol.version", MESSAGE_FORMAT, "4.3",
            "The Kafka version up to whose protocol this broker may go: before 0.10 records are "
            "written as v0 and before 0.11 as v1, and DeleteRecords is refused. Once all brokers "
            "may go further they do, for good (lapse.protocol.version)."),
    Setting("inter.broker.listener.name", TEXT, "",
            "The listener by which brokers reach each other; nothing: the first of listeners."),
    Setting("security.inter.broker.protocol", TEXT, "",
            "Instead of that name: the first listener with this protocol."),
    Setting("sasl.mechanism.inter.broker.protocol", TEXT, "",
            "Where that listener is by SASL: how brokers log in there, PLAIN, SCRAM-SHA-256 or "
            "SCRAM-SHA-512; as whom is the username of its JAAS entry."),
    Setting("broker.rack", TEXT, "",
            "Where the broker stands. Where all have one, a partition's replicas go to as many "
            "racks as can be (KIP-36), and consumers may read where they are (KIP-392)."),
    Setting("replica.selector.class", one_of("", RACK_AWARE), "",
            "Whether leaders send consumers that say their rack (client.rack) to an in-sync "
            "replica there; nothing: they read from the leader."),
    Setting("default.replication.factor", whole(1, INT_MAX), "1",
            "How many brokers get each partition of a topic that does not say it."),
    Setting("offsets.topic.replication.factor", whole(1, INT_MAX), "3",
            "The same of __consumer_offsets, when it is made; fewer where there are fewer "
            "brokers."),
    Setting("transaction.state.log.replication.factor", whole(1, INT_MAX), "3",
            "The same of __transaction_state."),
    Setting("transaction.state.log.min.isr", whole(1, INT_MAX), "2",
            "min.insync.replicas of __transaction_state, when it is made; never more than it has "
            "replicas."),
    Setting("auto.leader.rebalance.enable", BOOLEAN, "true",
            "Whether preferred leaders, the first of a partition's replicas, lead again once they "
            "are in sync."),
    Setting("leader.imbalance.check.interval.seconds", whole(1, INT_MAX), "300",
            "How often the controller looks for such."),
    Setting("replica.lag.time.max.ms", whole(1), "30000",
            "A follower that has not caught up for so long is no longer in sync."),
    Setting("replica.fetch.wait.max.ms", whole(0, INT_MAX), "500",
            "How long a leader holds a follower's fetch for which it has nothing; never longer "
            "than half of replica.lag.time.max.ms."),
    Setting("replica.socket.timeout.ms", whole(1, INT_MAX), "30000",
            "How long a follower waits for its leader's answer, beyond what the leader may hold "
            "it; then it connects anew."),
    Setting("replica.fetch.max.bytes", whole(0, INT_MAX), str(1 << 20),
            "How much of one partition a follower fetches at once; a larger batch comes whole."),
    Setting("replica.fetch.response.max.bytes", whole(0, INT_MAX), str(10 << 20),
            "How much it fetches at once in all."),
    Setting("leader.replication.throttled.rate", whole(0), str(LONG_MAX),
            "Bytes a second that leaders here give to throttled replicas that are not in sync "
            "(leader.replication.throttled.replicas of their topics). Of one broker.",
            dynamic=True),
    Setting("follower.replication.throttled.rate", whole(0), str(LONG_MAX),
            "Bytes a second that throttled replicas here fetch while they are not in sync.",
            dynamic=True),
    Setting("replication.quota.window.num", whole(1, 1000), "11",
            "Windows that those rates are counted over."),
    Setting("replication.quota.window.size.seconds", whole(1, 3600), "1",
            "How long such a window is."),
    Setting("replica.alter.log.dirs.io.max.bytes.per.second", whole(0), str(LONG_MAX),
            "Bytes a second of partitions that move from one of this broker's directories to "
            "another (AlterReplicaLogDirs).",
            dynamic=True),
    Setting("alter.log.dirs.replication.quota.window.num", whole(1, 1000), "11",
            "Windows that this rate is counted over."),
    Setting("alter.log.dirs.replication.quota.window.size.seconds", whole(1, 3600), "1",
            "How long such a window is."),
    Setting("lapse.replica.absence.max.ms", whole(1), str(7 * 24 * 3600 * 1000),
            "How long tombstones and markers wait for a replica that is not in sync and whose "
            "broker is away. After that it is emptied, and fetched anew, once its broker is back. "
            "The controller's counts: give all brokers the same."),
)  # fmt: skip

# Of topics; no broker setting stands in for them.
THROTTLE_SETTINGS: tuple[Setting, ...] = (
    Setting("follower.replication.throttled.replicas", THROTTLED, "",
            "Replicas that fetch no faster than follower.replication.throttled.rate until they "
            "are in sync: PARTITION:BROKER, or * for all."),
    Setting("leader.replication.throttled.replicas", THROTTLED, "",
            "Replicas whose leaders give them no more than leader.replication.throttled.rate "
            "until they are in sync: PARTITION:BROKER of the leaders, or * for all."),
)  # fmt: skip
