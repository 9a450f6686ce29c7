"""Produce (key 0): append one batch to each of some partitions.

Needs WRITE topic; WRITE transactional id.

Behaviour:
- each partition is checked by itself (`records.validate`, then the log's sequence rules); a batch
  is appended whole or not at all, and its `record_errors` name the records at fault;
- a batch that was already appended (an idempotent retry) is acknowledged with its first offset;
- for acks 1 the response is sent when the log has the batch, for -1 when all in-sync replicas have
  it: REQUEST_TIMED_OUT where that takes too long, NOT_LEADER_OR_FOLLOWER where another broker is
  elected meanwhile; with -1 a topic with fewer in-sync replicas than `min.insync.replicas` gets
  NOT_ENOUGH_REPLICAS, or NOT_ENOUGH_REPLICAS_AFTER_APPEND; for acks 0 there is no response, and an
  error ends the connection, as in Kafka;
- other acks: INVALID_REQUIRED_ACKS;
- an internal topic, and a topic named like Kafka's metadata log, is INVALID_TOPIC_EXCEPTION: only
  coordinators write there; otherwise a forged record would take effect after the next start;
- a transactional batch is refused unless its partition was added to the open transaction of its
  producer (`transaction_verification`): INVALID_TXN_STATE, TRANSACTION_ABORTABLE from v11 on, or
  the coordinator's error; NOT_ENOUGH_REPLICAS where the producer is to retry. Without a
  transactional id the whole request is TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
- a disk that is full or fails: KAFKA_STORAGE_ERROR; no half-written batch is acknowledged or
  visible; a failed disk takes its log directory offline (`Partitions.report`);
- an unexpected exception is UNKNOWN_SERVER_ERROR for that partition alone (`broker.logs.faults`).

v0-2 any number of messages of formats v0 and v1: they become one batch (KIP-32; a batch of format
v2 is accepted too, as by Kafka) · v1 throttle time · v2 append time · v3 exactly one batch of
format v2, anything else is INVALID_RECORD · v0-3 NOT_LEADER_OR_FOLLOWER for KAFKA_STORAGE_ERROR,
which came later (KIP-112) · v4-6 no difference here · v7 zstd, before it
UNSUPPORTED_COMPRESSION_TYPE (KIP-110) · v8 record errors and a message · v10 current leader · v12
nothing here: with the feature `transaction.version`, which this broker does not have, it joins its
partitions to the transaction · v13 topics by id: UNKNOWN_TOPIC_ID.

Differs from Kafka: internal topics are open to the client id `__admin_client` of a super user only,
where Kafka takes any client that calls itself so. Without an authorizer no client writes there.

Differs from Kafka: a transactional batch with the sequence numbers of one whose transaction has
ended is OUT_OF_ORDER_SEQUENCE_NUMBER; Kafka takes it for a duplicate, and new records are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.broker.coordinators.transaction_verification import Verified, verify_produced
from lapse.broker.logs.counters import TopicCounters
from lapse.broker.logs.faults import code_of
from lapse.broker.logs.led import Led
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.replicas import AppendedTo
from lapse.broker.request.authorize import (
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Caller,
    Handle,
    message_of,
)
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.leader_hints import LeaderHints
from lapse.kernels.layout import ATTRIBUTES, CODEC_MASK, HEADER_SIZE, MAGIC
from lapse.log.plain_appender import PLAIN_TYPES
from lapse.metadata.image import INTERNAL_TOPICS, METADATA_LOG
from lapse.records.layout import Codec
from lapse.records.validate import RecordErrors, RefusedBatch, check_produced
from lapse.security.acls import Operation
from lapse.wire.schema.produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lapse.wire.versions import BY_ID_FROM

_log = logging.getLogger(__name__)

ALL = -1
ACKS = frozenset({ALL, 0, 1})
V2, V2_FROM = 2, 3
STORAGE_ERROR_FROM = 4
ZSTD_FROM = 7
HINTS_FROM = 10
NO_OFFSET = -1
NOT_FOR_CLIENTS = INTERNAL_TOPICS | {METADATA_LOG}
ADMIN_CLIENT_ID = "__admin_client"

# The event loop checks and copies a plain batch of at most this size in some 100 us: waking a
# thread for it, and the loop again after it, costs three times as much.
AT_ONCE_BYTES_MAX = 64 << 10

Batches = list[tuple[TopicPartition, PartitionProduceData]]
TopicIds = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result for one partition's batch; `error` None means that it is in the log.

    `created_ms`: the first record's time, -1 where it has none, or nothing was appended.
    `leader_epoch`, `end_offset`: in which epoch it was appended, and what comes after it.
    """

    partition: TopicPartition
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    records: int = 0
    bytes_appended: int = 0
    values_dropped: int = 0
    created_ms: int = -1
    leader_epoch: int = -1
    end_offset: int = -1
    error: ErrorCode | None = None
    message: str | None = None
    record_errors: RecordErrors = ()


async def handle(
    services: Services, session: Session, version: int, request: ProduceRequest
) -> ProduceResponse | None:
    """Append the batches, count them, and respond unless acks is 0."""
    topic_ids = None
    if version >= BY_ID_FROM:
        request, topic_ids = _named(services, request)
    batches = [
        (TopicPartition(topic.name, data.index), data)
        for topic in request.topic_data
        for data in topic.partition_data
    ]
    try:
        verified = await _verify(services, session, version, request, batches)
    except KafkaError as refusal:
        results = [_refused(where, refusal.code, refusal) for where, _ in batches]
    else:
        terms = Terms(services.clock.now_ms(), version, verified, topic_ids)
        logs, results = services.partitions, []
        if sum([len(data.records or b"") for _, data in batches]) <= AT_ONCE_BYTES_MAX:
            results = services.disk.try_now(append_at_once, logs, terms, batches) or []
        if len(results) < len(batches):
            left = batches[len(results) :]
            results += await services.disk.run(append_all, logs, terms, left)
    now_ms = services.clock.now_ms()
    for result in results:
        account(services, result, now_ms)
    if request.acks == ALL and not services.topics.members.is_alone:
        results = await committed(services, session, results, request.timeout_ms)
    if request.acks == 0:
        close_if_failed(results)
        return None
    return respond(services, session, request, version, results)


def _named(services: Services, request: ProduceRequest) -> tuple[ProduceRequest, TopicIds]:
    """The request with the names of its topics, and the ids of those that are there, by name.

    Any other gets words for a name, which no topic has.
    """
    ids = services.topics.image.ids
    named = [
        replace(
            topic,
            name=ids[topic.topic_id].name
            if topic.topic_id in ids
            else f"the topic of id {format_topic_id(topic.topic_id)}",
        )
        for topic in request.topic_data
    ]
    known = {one.name: format_topic_id(one.topic_id) for one in named if one.topic_id in ids}
    return replace(request, topic_data=tuple(named)), known


async def committed(
    services: Services, session: Session, results: list[AppendResult], timeout_ms: int
) -> list[AppendResult]:
    """The results once all in-sync replicas have the batches, or it is known that they do not."""
    appended = [
        AppendedTo(r.partition, r.leader_epoch, r.end_offset) for r in results if r.error is None
    ]
    codes = await services.replicas.committed(appended, timeout_ms / 1000, session.waits_with)
    left = iter(codes)
    return [r if r.error is not None else _replicated(r, next(left)) for r in results]


def _replicated(result: AppendResult, code: ErrorCode) -> AppendResult:
    if code is ErrorCode.NONE:
        return result
    message = f"{result.partition}: appended, but not known to be on enough replicas: {code.name}"
    return replace(result, error=code, message=message)


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all batches of a request.

    Attributes:
        topic_ids: by name, if the request names topics by id: a log may be another's by now.
    """

    now_ms: int
    version: int
    verified: Verified
    topic_ids: TopicIds | None = None


def append_at_once(partitions: Partitions, terms: Terms, batches: Batches) -> list[AppendResult]:
    """Check and append the first batches, up to one that the event loop must not wait for."""
    results = []
    for where, data in batches:
        result = _append(partitions, terms, where, data, _append_if_quick)
        if result is None:
            break
        results.append(result)
    return results


def append_all(partitions: Partitions, terms: Terms, batches: Batches) -> list[AppendResult]:
    """Check and append each batch, in a worker thread."""
    results = (_append(partitions, terms, where, data, _append_checked) for where, data in batches)
    return [result for result in results if result is not None]


@dataclass(frozen=True, slots=True)
class _Sent:
    """One batch on its way into its log."""

    where: TopicPartition
    records: bytes | memoryview
    now_ms: int
    verified_at: int | None


def _append(
    partitions: Partitions,
    terms: Terms,
    where: TopicPartition,
    data: PartitionProduceData,
    append: Callable[[Led, _Sent], AppendResult | None],
) -> AppendResult | None:
    try:
        verified_at, version = terms.verified.get(where), terms.version
        if terms.topic_ids is not None and where.topic not in terms.topic_ids:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{where}: no topic has that id")
        if isinstance(verified_at, KafkaError):
            raise verified_at
        led = partitions.led(where)
        if terms.topic_ids is not None and terms.topic_ids[where.topic] != led.log.topic_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{where}: no topic has that id any more")
        records = data.records or b""
        if version < ZSTD_FROM or len(records) <= MAGIC or records[MAGIC] < V2:
            _check_version(records, version, where)
        return append(led, _Sent(where, records, terms.now_ms, verified_at))
    except Exception as e:  # noqa: BLE001  (it is logged there)
        return failed(partitions, where, e)


def failed(partitions: Partitions, where: TopicPartition, error: Exception) -> AppendResult:
    """The result of a batch whose append raised that; a failed disk goes offline."""
    partitions.append_failures.note(where, "a produced batch", error)
    return _refused(where, code_of(partitions, where, "Produce", error), error)


def _append_if_quick(led: Led, sent: _Sent) -> AppendResult | None:
    """Append a batch that only needs a copy; None where a codec, roll or held lock needs more."""
    log = led.log
    if log.config.compression_type not in PLAIN_TYPES or not _is_plain(sent.records):
        return None
    if not log.try_begin(len(sent.records)):
        return None
    try:
        return _append_checked(led, sent)
    finally:
        log.end()


def _is_plain(records: bytes | memoryview) -> bool:
    return (
        len(records) >= HEADER_SIZE
        and records[MAGIC] == V2
        and records[ATTRIBUTES + 1] & CODEC_MASK == Codec.NONE
    )


def _append_checked(led: Led, sent: _Sent) -> AppendResult:
    checked = check_produced(sent.records, led.log.config, sent.now_ms, str(sent.where))
    done = led.log.append(
        checked, leader_epoch=led.epoch, now_ms=sent.now_ms, verified_at=sent.verified_at
    )
    return AppendResult(
        sent.where,
        done.base_offset,
        done.log_append_time_ms,
        done.log_start_offset,
        records=0 if done.duplicate else checked.header.count,
        bytes_appended=0 if done.duplicate else checked.header.size,
        values_dropped=0 if done.duplicate else checked.values_dropped,
        created_ms=-1 if done.duplicate else checked.header.base_timestamp,
        leader_epoch=led.epoch,
        end_offset=done.last_offset + 1,
    )


def _check_version(records: bytes | memoryview, version: int, where: TopicPartition) -> None:
    """Refuse a batch that a request of that version may not carry."""
    magic = records[MAGIC] if len(records) > MAGIC else V2
    if magic < V2 and version >= V2_FROM:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD, f"{where}: Produce v{version} with message format v{magic}"
        )
    is_batch = magic == V2 and len(records) >= HEADER_SIZE
    if is_batch and version < ZSTD_FROM and records[ATTRIBUTES + 1] & CODEC_MASK == Codec.ZSTD:
        raise RefusedBatch(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{where}: Produce v{version} with zstd"
        )


def _refused(where: TopicPartition, code: ErrorCode, error: Exception) -> AppendResult:
    record_errors = error.record_errors if isinstance(error, RefusedBatch) else ()
    message = str(error) if isinstance(error, LapseError) else f"{where}: {type(error).__name__}"
    return AppendResult(where, error=code, message=message, record_errors=record_errors)


async def _verify(
    services: Services, session: Session, version: int, request: ProduceRequest, batches: Batches
) -> Verified:
    """Check before any append; raises KafkaError where nothing may be appended."""
    if request.acks not in ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: -1, 0 or 1")
    sent = [(where, data.records or b"") for where, data in batches]
    verified = await verify_produced(
        services.transactions, services.partitions, request.transactional_id, sent, version
    )
    refused = _too_few_replicas(services, batches) if request.acks == ALL else {}
    refused |= _internal(services, session, batches)
    if not refused:
        return verified
    earlier = {tp: error for tp, error in verified.items() if isinstance(error, KafkaError)}
    return {**verified, **refused, **earlier}


def _internal(
    services: Services, session: Session, batches: Batches
) -> dict[TopicPartition, KafkaError]:
    """Refuse internal topics to a client that may write topics; checked as late as in Kafka.

    The error of a missing partition, or of a transaction that is not known, comes first.
    """
    found = [where for where, _ in batches if where.topic in NOT_FOR_CLIENTS]
    if not found or _writes_everywhere(services, session):
        return {}
    topics = services.topics.image.topics
    return {
        where: KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{where}: topic {where.topic} is internal, only its coordinator may write to it",
        )
        for where in found
        if where.topic in topics and 0 <= where.partition < topics[where.topic].partitions
    }


def _writes_everywhere(services: Services, session: Session) -> bool:
    """Kafka checks the client id alone, which any client can choose."""
    is_super_user = services.access.authorizer.is_super_user(session.actor)
    return is_super_user and session.client_id == ADMIN_CLIENT_ID


def _too_few_replicas(services: Services, batches: Batches) -> dict[TopicPartition, KafkaError]:
    """Partitions whose `min.insync.replicas` requires more for acks=-1 than are in sync.

    Of those that are led here: a client would wait for replicas of one that is not.
    """
    refused = {}
    for where, _ in batches:
        topic = services.topics.image.topics.get(where.topic)
        required = 1 if topic is None else topic.config.min_insync_replicas
        in_sync = services.replicas.in_sync(where) if required > 1 else 1
        if required > in_sync and _is_led(services.partitions, where):
            refused[where] = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{where}: min.insync.replicas={required}, in sync: {in_sync}",
            )
    return refused


def _is_led(partitions: Partitions, where: TopicPartition) -> bool:
    try:
        partitions.led(where)
    except Exception:  # noqa: BLE001  (appending meets it again, and says what it is)
        return False
    return True


def account(services: Services, result: AppendResult, now_ms: int) -> None:
    """Count a batch, and wake who waits for it."""
    if result.error is not None:
        if services.topics.image.topics.get(result.partition.topic):
            services.counters.topics[result.partition.topic].failed_produce_requests += 1
        return
    counters = services.counters.topics[result.partition.topic]
    counters.messages_in += result.records
    counters.bytes_in += result.bytes_appended
    if result.created_ms >= 0:
        counters.timed_batches += 1
        counters.latency_ms += max(now_ms - result.created_ms, 0)
    services.replicas.appended(result.partition)
    services.purgatory.appended(result.partition, result.bytes_appended)
    if result.values_dropped:
        _report_dropped(result, counters)


def _report_dropped(result: AppendResult, counters: TopicCounters) -> None:
    """Log one line per topic: the response is success, as for a producer that knows no flag."""
    if not counters.tombstone_values_dropped:
        _log.warning(
            "topic %s: a tombstone came with a value, which is dropped: the topic does not keep "
            "such values (KIP-87) without lapse.tombstone.values.enable=true. Logged once; "
            "lapse_tombstone_values_dropped counts each one", result.partition.topic,
        )  # fmt: skip
    counters.tombstone_values_dropped += result.values_dropped


def close_if_failed(results: list[AppendResult]) -> None:
    """End the connection of a request with acks=0, which has no answer, for an error."""
    failed = [o for o in results if o.error is not None]
    if failed:
        raise CloseConnection(
            f"Produce with acks=0 failed, {len(failed)} of {len(results)} partitions; "
            f"the first: {failed[0].message}"
        )


def respond(
    services: Services,
    session: Session,
    request: ProduceRequest,
    version: int,
    results: list[AppendResult],
) -> ProduceResponse:
    """The answer that says what became of the request's batches, in their order."""
    hints = LeaderHints(services, session)
    partition_responses = iter([_partition_response(result, version, hints) for result in results])
    return ProduceResponse(
        node_endpoints=tuple(
            NodeEndpoint(node_id=broker, host=address.host, port=address.port, rack=rack)
            for broker, address, rack in hints.addresses()
        ),
        responses=tuple(
            [
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=tuple(
                        islice(partition_responses, len(topic.partition_data))
                    ),
                )
                for topic in request.topic_data
            ]
        ),
    )


def _partition_response(
    result: AppendResult, version: int, hints: LeaderHints
) -> PartitionProduceResponse:
    error = result.error or ErrorCode.NONE
    known = hints.of(result.partition, error) if version >= HINTS_FROM and error else None
    if error == ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_FROM:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return PartitionProduceResponse(
        index=result.partition.partition,
        error_code=error,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=tuple(
            [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
                for index, why in result.record_errors
            ]
        ),
        error_message=result.message,
        current_leader=LeaderIdAndEpoch()
        if known is None
        else LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1]),
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(caller: Caller, version: int, request: ProduceRequest, handle: Handle) -> Any:
    transactional_id, ids = request.transactional_id, caller.services.topics.image.ids

    def may(topic: TopicProduceData) -> bool:
        if version < BY_ID_FROM:
            return caller.may_topic(Operation.WRITE, topic.name)
        known = ids.get(topic.topic_id)
        return known is None or caller.may_topic(Operation.WRITE, known.name)

    allowed: tuple[TopicProduceData, ...]
    if transactional_id is not None and not caller.may_transaction(
        Operation.WRITE, transactional_id
    ):
        allowed, refused_topics, code = (), request.topic_data, TRANSACTION_REFUSED
    else:
        allowed, refused_topics = caller.split_by_permission(request.topic_data, may)
        code = TOPIC_REFUSED
    if not refused_topics:
        return await handle(request)
    response = await handle(replace(request, topic_data=allowed)) if allowed else None
    if request.acks == 0:
        raise CloseConnection("Produce with acks=0: not authorized")
    refused = tuple(_unwritten(topic, code) for topic in refused_topics)
    if response is None:
        return ProduceResponse(responses=refused)
    return replace(response, responses=(*response.responses, *refused))


def _unwritten(topic: TopicProduceData, code: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=tuple(
            PartitionProduceResponse(
                index=partition.index,
                error_code=code,
                base_offset=-1,
                record_errors=(),
                error_message=message_of(code),
            )
            for partition in topic.partition_data
        ),
    )


API = Endpoint(PRODUCE, ProduceRequest, ProduceResponse, handle, _authorize)
