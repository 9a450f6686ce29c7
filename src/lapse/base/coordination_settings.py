"""Settings of consumer groups, their offsets, and transactions: their rows in the table."""

from __future__ import annotations

from lapse.base.setting import BOOLEAN, INT_MAX, Setting, list_of, one_of, whole

_DAY_MS = 86_400_000

COORDINATION_SETTINGS: tuple[Setting, ...] = (
    Setting("offsets.topic.num.partitions", whole(1, INT_MAX), "50",
            "Partitions of __consumer_offsets, when it is made."),
    Setting("offsets.topic.segment.bytes", whole(1, INT_MAX), str(100 << 20),
            "segment.bytes of __consumer_offsets, when it is made."),
    Setting("offsets.retention.minutes", whole(1, INT_MAX), "10080",
            "How long offsets are kept after their group became empty, or their topic unread."),
    Setting("offsets.retention.check.interval.ms", whole(1), "600000",
            "How often offsets are looked through for what is over that."),
    Setting("offset.metadata.max.bytes", whole(0, INT_MAX), "4096",
            "The longest text a client may keep with an offset."),
    Setting("transaction.state.log.num.partitions", whole(1, INT_MAX), "50",
            "Partitions of __transaction_state, when it is made."),
    Setting("transaction.state.log.segment.bytes", whole(1, INT_MAX), str(100 << 20),
            "segment.bytes of __transaction_state, when it is made."),
    Setting("transaction.max.timeout.ms", whole(1, INT_MAX), "900000",
            "The longest transaction.timeout.ms a producer may ask for; an open transaction that "
            "is older than its timeout is aborted."),
    Setting("transactional.id.expiration.ms", whole(1, INT_MAX), str(7 * _DAY_MS),
            "How long a transactional id is kept that is not used."),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", whole(1, INT_MAX),
            "10000", "How often open transactions are looked through for those that timed out."),
    Setting("transaction.remove.expired.transaction.cleanup.interval.ms", whole(1, INT_MAX),
            "3600000", "How often transactional ids are looked through for what has expired."),
    Setting("transaction.partition.verification.enable", BOOLEAN, "true",
            "Whether a batch is refused whose transaction does not know of its partition."),
    Setting("group.min.session.timeout.ms", whole(0, INT_MAX), "6000",
            "The shortest session timeout a member of a group may ask for."),
    Setting("group.max.session.timeout.ms", whole(0, INT_MAX), "1800000",
            "The longest one."),
    Setting("group.initial.rebalance.delay.ms", whole(0, INT_MAX), "3000",
            "How long an empty group waits for more members before its first rebalance (KIP-134)."),
    Setting("group.max.size", whole(1, INT_MAX), str(INT_MAX), "Members a group may have."),
    Setting("group.coordinator.rebalance.protocols",
            list_of("classic", "consumer", needed="classic"), "classic,consumer",
            "How groups may be run; without consumer, members of KIP-848 are refused."),
    Setting("group.consumer.session.timeout.ms", whole(1, INT_MAX), "45000",
            "How long a member of KIP-848 may be silent."),
    Setting("group.consumer.heartbeat.interval.ms", whole(1, INT_MAX), "5000",
            "How often such a member is to send a heartbeat."),
    Setting("group.consumer.max.size", whole(1, INT_MAX), str(INT_MAX),
            "Members a group of KIP-848 may have."),
    Setting("group.consumer.assignors", list_of("uniform", "range"), "uniform,range",
            "Who may decide which member has which partitions; the first where members do not "
            "say."),
    Setting("group.consumer.assignment.interval.ms", whole(0, INT_MAX), "1000",
            "The shortest time between two assignments of such a group."),
    Setting("group.consumer.regex.refresh.interval.ms", whole(10_000, INT_MAX), "600000",
            "How old the topics may be that a member's regular expression was found to match."),
    Setting("group.consumer.migration.policy",
            one_of("bidirectional", "upgrade", "downgrade", "disabled"), "bidirectional",
            "Which groups with members may change their protocol: classic ones to that of KIP-848 "
            "(upgrade), when the first member joins by it, and back (downgrade), when the last one "
            "that did is gone."),
)  # fmt: skip
