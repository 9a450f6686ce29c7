"""Messages between a lifecycle service and an owner in another process.

They use a Unix socket in the owner's data directory, or, from another machine, the Kafka API
LifecycleControl. Each message is a four-byte big-endian length and that many bytes of JSON, an
object whose `type` says what it is. The service sends one request at a time, `Hello` first; the
owner answers each with the matching answer, or `Refused`.

Both ends are of one version of Lapse: `VERSION` changes with any change here, in `LogFacts`, in
`TopicConfig` or in `Receipt`, and a service of another version is refused.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, ConfigError, CorruptData
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryReceipt
from lapse.lifecycle.status.conditions import Condition

SOCKET = "control.sock"  # its name in a data directory
MARK = "lease-"  # how the files in log directories begin by which a remote service knows them
VERSION = 5
LENGTH = struct.Struct(">I")
FRAME_BYTES_MAX = 256 << 20
RECEIPTS_MAX = 256  # in one Commit, so that a commit's answer never takes long
SUMMARIES_MAX = 1024  # in one Adopt
_PATH_BYTES_MAX = 103 if sys.platform == "darwin" else 107


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Identifies the service. The accepted one is the only service until its connection ends.

    From another machine, `host`, until it says `Leave` or nothing for some time. It names the lease
    that it had last, if it lost the connection: it need not wait for itself.
    """

    version: int
    pid: int
    host: str = ""
    lease: str = ""


class ListLogs(msgspec.Struct, tag=True, frozen=True):
    """Facts of all logs."""


class Commit(msgspec.Struct, tag=True, frozen=True):
    """Put these in place; `Owner.commit`."""

    receipts: tuple[Receipt, ...]


class Adopt(msgspec.Struct, tag=True, frozen=True):
    """Take over these summaries; `Owner.adopt_summaries`."""

    receipts: tuple[SummaryReceipt, ...]


class AskConditions(msgspec.Struct, tag=True, frozen=True):
    """Requests what is out of order; a client that is not a service sends it instead of `Hello`."""


class Renew(msgspec.Struct, tag=True, frozen=True):
    """From another machine, while there is nothing to ask: the service is there."""


class Leave(msgspec.Struct, tag=True, frozen=True):
    """From another machine: the service goes, and another one may come at once."""


class Noted(msgspec.Struct, tag=True, frozen=True):
    """Answers `Renew` and `Leave`."""


class Conditions(msgspec.Struct, tag=True, frozen=True):
    """Answers `AskConditions`; the connection ends."""

    found: tuple[Condition, ...]


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """The owner's process. Attempts of earlier services are swept.

    To a service on another machine also: the `lease` that it names from now on, the owner's log
    directories, and the name of a file in each, by which the service knows that it sees the same.
    """

    version: int
    pid: int
    lease: str = ""
    dirs: tuple[str, ...] = ()
    mark: str = ""


class Logs(msgspec.Struct, tag=True, frozen=True):
    """Answers `ListLogs`."""

    logs: tuple[LogInfo, ...]


class _EncodedLogs(msgspec.Struct, tag="Logs", frozen=True):
    logs: Sequence[msgspec.Raw]


class Committed(msgspec.Struct, tag=True, frozen=True):
    """Answers `Commit`, one result a receipt, in order."""

    results: tuple[CommitResult, ...]


class Adopted(msgspec.Struct, tag=True, frozen=True):
    """Answers `Adopt`: why each was passed over, None where it was not, in order."""

    refusals: tuple[str | None, ...]


class Refused(msgspec.Struct, tag=True, frozen=True):
    """Why there is no answer; the connection ends. `taken`: another service is there."""

    reason: str
    taken: bool = False


Request = Hello | ListLogs | Commit | Adopt | AskConditions | Renew | Leave
Answer = Welcome | Logs | Committed | Adopted | Conditions | Noted | Refused
T = TypeVar("T")


def encode(message: Request | Answer) -> bytes:
    """A frame."""
    return _framed(msgspec.json.encode(message))


def encode_logs(logs: Sequence[msgspec.Raw]) -> bytes:
    """The frame of a `Logs`, of logs that are encoded already."""
    return _framed(msgspec.json.encode(_EncodedLogs(logs)))


def _framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def body_size(head: bytes, where: str) -> int:
    """Bytes that follow a frame's head; raises CorruptData over the limit."""
    (size,) = LENGTH.unpack(head)
    if size > FRAME_BYTES_MAX:
        raise CorruptData(where, 0, f"a frame of {size} bytes, {FRAME_BYTES_MAX} is the limit,")
    return int(size)


def decode_request(body: bytes, where: str) -> Request:
    """Raises CorruptData."""
    try:
        request: Request = from_json(body, Request)
    except NOT_JSON as e:
        raise CorruptData(where, 0, f"not a request ({e})") from e
    return request


def decode_answer(body: bytes, where: str) -> Answer:
    """Raises CorruptData."""
    try:
        answer: Answer = from_json(body, Answer)
    except NOT_JSON as e:
        raise CorruptData(where, 0, f"not an answer ({e})") from e
    return answer


def short_path(path: Path, directory_fd: int) -> str:
    """A name for a socket that fits the system's 108 bytes, however deep its directory lies.

    On Linux a long one is reached through its open directory, `/proc/self/fd/N/name`, for bind
    and connect alike. Elsewhere it raises ConfigError.
    """
    if len(bytes(path)) <= _PATH_BYTES_MAX:
        return str(path)
    proc = Path("/proc/self/fd") / str(directory_fd)
    if not proc.exists():
        raise ConfigError(
            f"log.dirs={path.parent}: allowed here are at most "
            f"{_PATH_BYTES_MAX - len(path.name) - 1} bytes, so that {path.name} can be in it"
        )
    return str(proc / path.name)
