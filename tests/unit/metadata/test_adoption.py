"""What speaks against taking over a Kafka node, and what is taken over where nothing does."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.base.secret import Secret
from lapse.log import checkpoints
from lapse.metadata.adoption import LEVELS, LeftOut, adopt, adoption_of, kafka_node
from lapse.metadata.image import METADATA_FOLDER
from lapse.metadata.policies import find_policies
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import TopicRecord
from lapse.wire.schema.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    EntityData,
    PartitionChangeRecord,
    ProducerIdsRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from tests.support.metadata.kraft_log import BROKER, TOPIC, batch, config, quorum, segment, topic

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
ENTRY = AccessControlEntryRecord(
    id=A, resource_type=2, resource_name="t", pattern_type=3, principal="User:u", host="*",
    operation=3, permission_type=3,
)  # fmt: skip
USER = UserScramCredentialRecord(
    name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
)
QUOTA = ClientQuotaRecord(
    entity=(EntityData(entity_type="user", entity_name="u"),), key="request_percentage",
    value=50.0, remove=False,
)  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Node 1 of a Kafka that has the topic `a`, whose log ends at 5 in epoch 0."""
    path = tmp_path / "data"
    kafka_dir(path)
    log(path, "a-0", A)
    said(path, *topic("a", A))
    (path / checkpoints.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":3}')
    ends = {TopicPartition("a", 0): 5}
    checkpoints.write_offsets(RealFs(), path / checkpoints.RECOVERY_POINT, ends)
    return path


def kafka_dir(path: Path, node_id: int = 1) -> None:
    path.mkdir()
    checkpoints.write_meta(
        RealFs(), path, {"version": "1", "cluster.id": "c", "node.id": str(node_id)}
    )


def log(log_dir: Path, name: str, topic_id: uuid.UUID) -> None:
    (log_dir / name).mkdir()
    checkpoints.write_topic_id(RealFs(), log_dir / name, topic_id)
    checkpoints.write_epochs(RealFs(), log_dir / name / checkpoints.LEADER_EPOCHS, [(0, 0)])


def said(log_dir: Path, *of: object) -> None:
    segment(log_dir, 0, batch(0, *of))
    quorum(log_dir, 1)


def refusal(*log_dirs: Path, metadata: Path | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        adoption_of(kafka_node(log_dirs, metadata))
    return str(refused.value)


# --- taken over -----------------------------------------------------------------------------------


def test_all_of_it_is_in_the_store(data: Path) -> None:
    said(
        data, *topic("a", A), config(TOPIC, "a", "retention.ms", "7"),
        config(BROKER, "", "log.retention.ms", "5"), config(BROKER, "1", "log.roll.ms", "9"),
        config(BROKER, "2", "log.roll.ms", "8"), ENTRY, USER, QUOTA,
        ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=4000),
    )  # fmt: skip
    taken = adoption_of(kafka_node([data]))
    assert taken.left_out == (LeftOut("broker 2", "log.roll.ms"),)
    adopt(taken, data, RealFs())
    store = SqliteStore(data / STORE, str)
    assert store.cluster_id() == "c"
    assert store.levels() == LEVELS
    assert store.topics() == [TopicRecord("a", A, 1, {"retention.ms": "7"})]
    assert store.broker_settings() == {
        "": {"log.retention.ms": "5"}, "1": {"log.roll.ms": "9"}
    }  # fmt: skip
    assert len(store.acls()) == len(store.credentials()) == 1
    assert store.client_quotas() == {(("user", "u"),): {"request_percentage": 50.0}}
    assert store.allocate_producer_ids(1) == range(4000, 4001)
    store.close()
    assert find_policies(data, {}, {}).source == "Lapse's metadata"
    assert checkpoints.read_epochs(data / "a-0" / checkpoints.LEADER_EPOCHS) == [(0, 0)]
    with pytest.raises(ConfigError, match="a Lapse has begun here"):
        adopt(taken, data, RealFs())


def test_clients_are_told_no_older_epoch_than_kafka_told_them(data: Path) -> None:
    """The leader's shutdown begins an epoch without one, which is in the metadata alone."""
    shutdown = PartitionChangeRecord(partition_id=0, topic_id=A, leader=-1)
    said(data, *topic("a", A), shutdown, shutdown)
    adopt(adoption_of(kafka_node([data])), data, RealFs())
    path = data / "a-0" / checkpoints.LEADER_EPOCHS
    assert checkpoints.read_epochs(path) == [(0, 0), (2, 5)]


def test_without_a_shutdown_in_order_nobody_knows_where_an_epoch_begins(data: Path) -> None:
    (data / checkpoints.CLEAN_SHUTDOWN).unlink()
    said(data, *topic("a", A), PartitionChangeRecord(partition_id=0, topic_id=A, leader=1))
    taken = adoption_of(kafka_node([data]))
    assert taken.epochs == {}


def test_what_was_cut_short_is_done_again(data: Path) -> None:
    for name in (".adopting", ".adopting-wal", ".adopting-shm"):
        (data / (STORE + name)).write_bytes(b"half of it")
    adopt(adoption_of(kafka_node([data])), data, RealFs())
    assert sorted(path.name for path in data.glob(STORE + "*")) == [STORE]


def test_partitions_lie_in_any_directory_and_the_metadata_elsewhere(
    data: Path, tmp_path: Path
) -> None:
    more, metadata = tmp_path / "more", tmp_path / "metadata"
    kafka_dir(more)
    log(more, "a-1", A)
    log(more, "stranger-0", B)
    metadata.mkdir()
    said(metadata, *topic("a", A, [[1], [1]]))
    shutil.rmtree(data / METADATA_FOLDER)
    assert "--metadata-log-dir" in refusal(data, more)
    taken = adoption_of(kafka_node([data, more], metadata))
    assert taken.topics == (TopicRecord("a", A, 2, {}),)
    assert taken.unknown == (TopicPartition("stranger", 0),)


def test_what_lapse_does_not_have_is_left_out_and_said(data: Path) -> None:
    said(
        data, *topic("a", A), config(TOPIC, "a", "remote.log.copy.disable", "true"),
        config(BROKER, "1", "background.unknown", "1"), config(BROKER, "1", "num.partitions", "3"),
        config(32, "g", "consumer.session.timeout.ms", "45000"),
    )  # fmt: skip
    assert adoption_of(kafka_node([data])).left_out == (
        LeftOut("broker 1", "background.unknown"),
        LeftOut("broker 1", "num.partitions"),
        LeftOut("group g", "consumer.session.timeout.ms"),
        LeftOut("topic a", "remote.log.copy.disable"),
    )


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (topic("a", A, [[1, 2]]), "a-0: its replicas are 1, 2; allowed is 1 alone"),
        (topic("a", A, [[2]]), "a-0: its replicas are 2"),
        (
            [
                *topic("a", A),
                PartitionChangeRecord(partition_id=0, topic_id=A, adding_replicas=(2,)),
            ],
            "a-0: its replicas are 1; allowed is 1 alone",
        ),
        (topic("a", A, [[1], [1]]), "a-1: it has no folder here"),
        (topic("a", B), f"this one is {format_topic_id(B)}"),
        ([], "knows no topic"),
        (
            [*topic("a", A), config(TOPIC, "a", "retention.ms", "soon")],
            "topic a: retention.ms",
        ),
        (
            [*topic("a", A), config(TOPIC, "a", "remote.storage.enable", "true")],
            "topic a: a part of it is in remote storage",
        ),
        (
            [*topic("a", A), config(BROKER, "1", "log.retention.ms", "soon")],
            "log.retention.ms",
        ),
        ([*topic("a", A), replace(ENTRY, operation=99)], "an ACL of User:u"),
        ([*topic("a", A), replace(USER, mechanism=9)], "the credential of u"),
        ([*topic("a", A), ZkMigrationStateRecord(zk_migration_state=2)], "was not finished"),
    ],
)
def test_what_one_broker_alone_cannot_go_on_with(
    data: Path, records: list[object], why: str
) -> None:
    said(data, *records)
    assert why in refusal(data)
    assert not (data / STORE).exists()


def test_a_quorum_of_several_or_of_nobody_knows_whom_is_refused(data: Path) -> None:
    quorum(data, 1)
    adoption_of(kafka_node([data]))
    quorum(data, 1, 2)
    assert "several controllers (1, 2)" in refusal(data)
    (data / METADATA_FOLDER / "quorum-state").unlink()
    assert "there is no quorum-state" in refusal(data)


def test_a_log_that_is_there_twice_is_refused(data: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    kafka_dir(more)
    log(more, "a-0", A)
    assert "a-0: it has a folder in" in refusal(data, more)


def test_directories_of_several_nodes_are_refused(data: Path, tmp_path: Path) -> None:
    kafka_dir(tmp_path / "more", node_id=2)
    assert "node.id is 1, 2" in refusal(data, tmp_path / "more")


def test_not_all_reasons_are_said_where_there_are_many(data: Path) -> None:
    said(data, *topic("a", A, [[2]] * 9))
    assert refusal(data).endswith("; and 4 more")


# --- cut short ------------------------------------------------------------------------------------


class Cut(RealFs):
    """Does so many changes, and no more."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _check(self) -> None:
        if not self.left:
            raise StorageError("cut")
        self.left -= 1

    def replace_file(self, path: Path, data: Buffer | Secret) -> None:
        self._check()
        super().replace_file(path, data)

    def unlink(self, path: Path) -> None:
        self._check()
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check()
        super().rename(source, target)


def test_wherever_it_is_cut_short_all_of_it_is_there_or_nothing(tmp_path: Path) -> None:
    changes, whole = 0, False
    while not whole:
        data = tmp_path / str(changes)
        kafka_dir(data)
        log(data, "a-0", A)
        said(data, *topic("a", A), PartitionChangeRecord(partition_id=0, topic_id=A, leader=1))
        (data / checkpoints.CLEAN_SHUTDOWN).touch()
        ends = {TopicPartition("a", 0): 5}
        checkpoints.write_offsets(RealFs(), data / checkpoints.RECOVERY_POINT, ends)
        (data / (STORE + ".adopting-wal")).touch()
        taken = adoption_of(kafka_node([data]))
        try:
            adopt(taken, data, Cut(changes))
        except StorageError:
            assert not (data / STORE).exists()
            adopt(adoption_of(kafka_node([data])), data, RealFs())
        else:
            whole = True
        assert [path.name for path in data.glob(STORE + "*")] == [STORE]
        path = data / "a-0" / checkpoints.LEADER_EPOCHS
        assert checkpoints.read_epochs(path) == [(0, 0), (1, 5)]
        changes += 1
    assert changes > 3
