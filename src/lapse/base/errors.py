"""Kafka's error table and our exceptions.

Everything that can go wrong on purpose is a `LapseError`. One that has an answer in Kafka's
protocol is a `KafkaError` and carries the code that the client gets. Programming errors stay
ordinary Python exceptions: they are bugs and must not be dressed up.

Codes and names: Kafka's `Errors`, as of 4.3 (the part Lapse answers with).
"""

from __future__ import annotations

import errno
from enum import IntEnum

import msgspec

# What the system may have again: room on a disk, descriptors, memory.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
LACKS = _FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

# What msgspec raises for bytes that are not the JSON they should be; the last: nested too deeply.
NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class ErrorCode(IntEnum):
    """Kafka's protocol error codes."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


class LapseError(Exception):
    """Anything Lapse refuses or gives up on knowingly; the message is fit for a user."""


class KafkaError(LapseError):
    """A refusal with an error code of Kafka's: `code` goes on the wire, the text beside it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ConfigError(LapseError):
    """A setting or option is unknown or out of range; names it and what is allowed."""


class CorruptData(LapseError):
    """Bytes on disk or on the wire that do not parse; `where` names the file or topic-partition.

    Attributes:
        where: file or topic-partition, for people.
        position: byte position of the first bad byte's batch or entry.
    """

    def __init__(self, where: str, position: int, reason: str) -> None:
        super().__init__(f"{where}: {reason} at byte {position}")
        self.where = where
        self.position = position
        self.reason = reason


class MissingData(LapseError):
    """Records that a log or directory should have are not there; says which, and what to do."""


class StorageError(LapseError):
    """The file system failed us (disk full, I/O error); a client gets KAFKA_STORAGE_ERROR.

    Attributes:
        is_of_disk: a log directory goes offline over it; not over what is kept elsewhere.
    """

    is_of_disk = True


class SyncFailed(StorageError):
    """What was written is not on the disk, and may never be, though it can be read (fsyncgate)."""


class LockHeld(LapseError):
    """The log directory has an owner; names the holder."""


class StaleGeneration(LapseError):
    """A log's files changed under a plan (its `generation` moved); the round is made again."""


def os_error(error: BaseException | None) -> OSError | None:
    """What the system said behind an error, if it is that."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        error = error.__cause__
    return None


def is_lack(error: BaseException | None) -> bool:
    """Whether the system lacked something that it may have again (`LACKS`)."""
    of_system = os_error(error)
    return of_system is not None and of_system.errno in LACKS


def lacks_room(error: BaseException) -> bool:
    """Whether a change was not made for want of room, so that it may be made otherwise.

    Not where a sync said so: nobody knows then what is on the disk. Nor for want of descriptors or
    memory, of which a removal gives none back.
    """
    of_system = os_error(error)
    is_full = of_system is not None and of_system.errno in _FULL
    return is_full and not isinstance(error, SyncFailed)


def unreadable(error: OSError, what: object = None) -> StorageError:
    """The system's refusal to let a file be read, in words; raise it `from error`.

    `what` was read, where the system may not name it: it names a file only while that is opened.
    """
    return StorageError(f"reading {what or error.filename}: {error.strerror or error}")
