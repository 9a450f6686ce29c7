"""The options of a view, and its units of work. Frozen, and JSON both ways.

A unit says all that a task needs: it can be encoded in a driver and read anywhere that sees the
same directories. All units of one question carry the same `now_ms`, so that rows agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.log.txn_index import AbortedTxn

SEGMENTS, PLAN, LEDGER, KEYS = VIEWS = ("segments", "plan", "ledger", "keys")

_MEMORY_BYTES = 256 << 20
_MEMORY_BYTES_MIN = 256 << 10


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of a view.

    Attributes:
        paths: log directories, or partition directories.
        now_ms: the moment to judge by.
        settings: (name, text) of topic or broker settings, as `-c` of the commands; they win over
            what the directory's metadata says.
        estimates: for segments without summary, give what is known without reading them.
        logs_per_unit: most logs per unit.
        committed: keys of committed transactions only.
        fail_on_data_loss: an error where records vanish while keys are read, else they are missing.
        memory_bytes: what the keys of one unit may take at a time; a single huge key may have more.
        topics: names of the topics, each of which must exist; () for all topics.
        bootstrap: brokers, each of which is asked for what it has; then there are no paths.
        client: settings of Kafka's clients for that, secrets among them.
    """

    view: str
    paths: tuple[str, ...]
    now_ms: int
    settings: tuple[tuple[str, str], ...] = ()
    estimates: bool = False
    logs_per_unit: int = 64
    committed: bool = False
    fail_on_data_loss: bool = True
    memory_bytes: int = _MEMORY_BYTES
    topics: tuple[str, ...] = ()
    bootstrap: str = ""
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def admits(self, partition: TopicPartition) -> bool:
        """Whether it is of one of the topics."""
        return not self.topics or partition.topic in self.topics

    def check(self) -> None:
        """Raises ConfigError naming the option and what is allowed."""
        if self.view not in VIEWS:
            raise ConfigError(f"option view={self.view!r}: there are {', '.join(VIEWS)}")
        if bool(self.paths) == bool(self.bootstrap):
            raise ConfigError(
                "option path (log directories, or partition directories) or "
                "kafka.bootstrap.servers: exactly one is needed"
            )
        if self.bootstrap and self.view == KEYS:
            raise ConfigError(
                "the view keys reads files: option path in place of kafka.bootstrap.servers; or "
                "read the records themselves from brokers, and group them by key"
            )
        if self.bootstrap and self.settings:
            given = ", ".join(name for name, _ in self.settings)
            raise ConfigError(f"option {given}: allowed with a path; brokers go by their own")
        if self.logs_per_unit < 1:
            raise ConfigError(f"logs_per_unit={self.logs_per_unit}: allowed is 1 or more")
        if self.memory_bytes < _MEMORY_BYTES_MIN:
            raise ConfigError(
                f"memory_bytes={self.memory_bytes}: allowed is {_MEMORY_BYTES_MIN} or more"
            )


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Some keys of one log: those whose hash has its part in part_from … part_until-1.

    Attributes:
        offset_from, offset_until: the records that count.
        aborted: transactions whose data does not.
        seed0, seed1: of the hash; the same in all units of a log.
        valued_tombstones: KIP-87's flags count; not where the policy is known to lack compact.
    """

    offset_from: int
    offset_until: int
    part_from: int
    part_until: int
    seed0: int
    seed1: int
    valued_tombstones: bool = False
    aborted: tuple[AbortedTxn, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewUnit:
    """What one task reads.

    Attributes:
        log_dir: the directory the logs lie in.
        logs: partition directories, by name.
        keys: in a unit of keys, one for each of its logs.
        broker: HOST and PORT of a broker to ask for all that it has, in place of a directory.
    """

    options: ViewOptions
    log_dir: str
    logs: tuple[str, ...]
    keys: tuple[KeyRange, ...] = ()
    broker: tuple[str, int] | None = None


def encode_unit(unit: ViewUnit) -> bytes:
    """A unit as JSON."""
    return msgspec.json.encode(unit)


def decode_unit(data: bytes) -> ViewUnit:
    """Inverse of `encode_unit`; raises ConfigError for what is no unit."""
    try:
        return from_json(data, ViewUnit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise ConfigError(f"no unit of a view: {e}") from e
