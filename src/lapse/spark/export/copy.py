"""Topics copied to another cluster, or under another name: a stream of `format("lapse")` to itself.

What a record is stays: key and value, null or not, headers, its partition and the order within it,
a tombstone's value (KIP-87), and **what its producer said of the time** (KIP-32's mirror case):
that is in the batches of a LogAppendTime topic too, where a stock consumer, and so a stock mirror,
does not see it. Read is what is committed; offsets are the target's own.

A checkpoint remembers how far the copy has come. It belongs to one pair of clusters: a copy to
another cluster with the same checkpoint would silently miss the earlier records.

Exactly once (`source.exactly_once`). A batch is cut into tasks by its offsets and nothing else, so
what a task has written is not compared with what it would write now: that may have been compacted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, LapseError, StorageError
from lapse.base.fs import Fs
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.login import login
from lapse.spark import source
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse

CLAIM = "lapse-copy.json"
_LOOK_SECONDS = 1
# Spark (4.2) measures an Arrow batch anew with each row it puts in, which with a column of lists,
# such as headers, costs several times what all the rest does. Not where there is no limit of bytes:
# then rows are what bounds a batch.
SETTINGS: Mapping[str, str] = {
    **source.SETTINGS,
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}
_COLUMNS = "key,value,topic,headers,timestamp,create_time_ms,is_tombstone"


class CopyFailed(LapseError):
    """The query ended before all was copied; its checkpoint knows what was."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster: who to ask first, and settings of Kafka's clients for it."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options(self) -> dict[str, str]:
        """As `format("lapse")` takes them."""
        of_client = {f"kafka.{name}": text for name, text in self.client.items()}
        return {**of_client, "kafka.bootstrap.servers": self.bootstrap}

    async def look(self) -> MetadataResponse:
        """The cluster's id (None where it is too old to tell) and all its topics.

        Raises ConnectionLost and KafkaError.
        """
        async with Cluster(parse_bootstrap(self.bootstrap), login(self.client)) as cluster:
            connection = await cluster.any_connection()
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            return await connection.request(request, MetadataResponse)


@dataclass(frozen=True, slots=True)
class CopySpec:
    """What is copied where.

    Attributes:
        checkpoint: a directory that this process and Spark both see.
        rename: the one topic's name at the target; None: names stay.
        by_key: partitions are chosen anew, by the key; else they stay.
        offsets_max: of all partitions together, between two notes in the checkpoint.
        codec: of the batches written, by the names of `compression.type`.
    """

    source: ClusterAddress
    target: ClusterAddress
    topics: tuple[str, ...]
    checkpoint: Path
    rename: str | None = None
    by_key: bool = False
    offsets_max: int = 1_000_000
    codec: str = "none"

    def name_of(self, topic: str) -> str:
        """What a topic is called at the target."""
        return self.rename or topic


class Claim(msgspec.Struct, frozen=True):
    """Whose a checkpoint is: ids of two clusters, topics, and the other name of the one topic."""

    source: str | None
    target: str | None
    topics: tuple[str, ...]
    rename: str | None


async def claim(spec: CopySpec, fs: Fs, *, dry_run: bool = False) -> None:
    """See that it can be done, and make the checkpoint this copy's, or see that it is.

    A dry run sees the same, and makes nothing. Raises ConfigError where a topic is not there, has
    too few partitions at the target, or would be copied to itself, and where the checkpoint is
    another's; StorageError where that cannot be read or written; ConnectionLost and KafkaError.
    """
    here, there = await spec.source.look(), await spec.target.look()
    for topic in spec.topics:
        _check(spec, topic, here, there)
    ids = here.cluster_id, there.cluster_id
    path, mine = spec.checkpoint / CLAIM, Claim(*ids, tuple(sorted(spec.topics)), spec.rename)
    try:
        known = from_json(path.read_bytes(), Claim)
    except FileNotFoundError:
        if (spec.checkpoint / "offsets").exists():
            raise ConfigError(f"{spec.checkpoint}: another query's checkpoint, no copy's") from None
        if dry_run:
            return
        fs.make_dir(spec.checkpoint)
        fs.replace_file(path, msgspec.json.encode(mine))
    except (OSError, msgspec.DecodeError) as e:
        raise StorageError(f"{path}: {e}") from e
    else:
        if known != mine:
            raise ConfigError(
                f"{spec.checkpoint}: belongs to the copy {_said(known)}, this is {_said(mine)}"
            )


def _check(spec: CopySpec, topic: str, here: MetadataResponse, there: MetadataResponse) -> None:
    name, target = spec.name_of(topic), spec.target.bootstrap
    mine, theirs = (
        next((len(one.partitions) for one in seen.topics if one.name == name_there), 0)
        for seen, name_there in ((here, topic), (there, name))
    )
    if not mine:
        raise ConfigError(f"there is no topic {topic} at {spec.source.bootstrap}")
    if topic == name and here.cluster_id is not None and here.cluster_id == there.cluster_id:
        raise ConfigError(f"{topic}: a topic is not copied to itself; give it another name")
    if theirs < mine and (not spec.by_key or not theirs):
        raise ConfigError(
            f"{topic} has {mine} partitions, {name} at {target} has {theirs}: make it there "
            f"(lapse topic create {name} -p {mine}), or let the key choose among them (--by-key)"
        )


def _said(one: Claim) -> str:
    return msgspec.json.encode(one).decode()


def copy_what_is_there(
    spark: SparkSession, spec: CopySpec, on_rows: Callable[[int], None] = lambda _: None
) -> None:
    """Copy up to the ends that the source has now; the session knows `format("lapse")`.

    `on_rows` is told after each batch how many records this run has copied. Raises CopyFailed.
    """
    read = {
        **spec.source.options(),
        "subscribe": ",".join(spec.topics),
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": str(spec.offsets_max),
        "columns": _COLUMNS if spec.by_key else f"{_COLUMNS},partition",
    }
    write = {
        **spec.target.options(),
        **({} if spec.rename is None else {"topic": spec.rename}),
        "kafka.compression.type": spec.codec,
        "lapse.tombstone.values.enable": "true",
        "repeatedRows": "unchecked",
        "checkpointLocation": str(spec.checkpoint),
    }
    try:
        frame = spark.readStream.format("lapse").options(**read).load()
        query = (
            frame.writeStream.format("lapse").options(**write).trigger(availableNow=True).start()
        )
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                on_rows(rows_read(query.recentProgress))
        finally:
            query.stop()
    except PySparkException as e:
        raise CopyFailed(f"copying stopped: {reason_of(str(e))}") from e


def rows_read(progress: Iterable[Mapping[str, Any]]) -> int:
    """By a query so far. Under Connect a batch that is asked about as it ends may say null."""
    return sum(batch["numInputRows"] or 0 for batch in progress)


def reason_of(said: str) -> str:
    """Our own error, out of the stack traces of two languages; else what they begin with."""
    ours = re.findall(r"^\s*lapse\.[\w.]+: (.+)$", said, re.MULTILINE)
    return str(ours[-1] if ours else said.strip().partition("\n")[0])
