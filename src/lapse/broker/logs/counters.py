"""Counters of a broker: plain integers, changed in the event loop, read by `http` when scraped."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from lapse.metadata.image import Topic


@dataclass(slots=True)
class TopicCounters:
    """What went in and out of one topic.

    `tombstone_values_dropped`: values of flagged tombstones (KIP-87) that it does not keep.
    `latency_ms`: of `timed_batches` together, from their first record's time to their append.
    """

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    failed_produce_requests: int = 0
    tombstone_values_dropped: int = 0
    timed_batches: int = 0
    latency_ms: int = 0


@dataclass(slots=True)
class Counters:
    """What a broker counts.

    Attributes:
        requests: by API name.
        fast_requests: those of them that the fast path has answered.
        connections: open now.
        connections_refused: ended by us, for garbage or an error of ours.
        connections_throttled: closed, later, since their address opens too many a second; by
            listener.
        connections_delayed: taken late, since too many come a second; by listener.
        logins: that succeeded, by listener.
        logins_refused: certificates without a principal and handshakes that were broken off, by
            listener; handshakes that fail, and what fails by SASL, are counted by the listener's
            `FailedAuthentications`.
        certificates_renewed: new files of certificates put in force, by listener.
        certificates_refused: new files that cannot be used, by listener.
        deletions_expired: partitions of DeleteRecords requests whose replicas were not all done in
            the time that the client gave them.
        housekeeping_failures: logs that housekeeping could not look after, by what failed.
    """

    topics: defaultdict[str, TopicCounters] = field(
        default_factory=lambda: defaultdict(TopicCounters)
    )
    requests: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    fast_requests: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    connections: int = 0
    connections_refused: int = 0
    connections_throttled: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    connections_delayed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    logins: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    logins_refused: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    certificates_renewed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    certificates_refused: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    deletions_expired: int = 0
    housekeeping_failures: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def topic_deleted(self, topic: Topic) -> None:
        """Forget what was counted of it: a new one of its name counts from 0."""
        self.topics.pop(topic.name, None)
