"""What each record of Kafka's metadata log changes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.metadata.kraft import read_entries
from lapse.metadata.kraft_image import KafkaImage, KafkaPartition, image_of, voters_in
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import ScramCredential, ScramMechanism
from lapse.wire.codec import encode
from lapse.wire.schema.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    EntityData,
    KRaftVersionFeature,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
    Voter,
    VoterEndpoint,
    VotersRecord,
    ZkMigrationStateRecord,
)
from tests.support.metadata.kraft_log import (
    BROKER,
    TOPIC,
    VOTERS,
    batch,
    config,
    control,
    segment,
    topic,
)

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
ENTRY = AccessControlEntryRecord(
    id=A, resource_type=2, resource_name="t", pattern_type=4, principal="User:u", host="*",
    operation=3, permission_type=2,
)  # fmt: skip


def image(tmp_path: Path, *of: object, version: int = 0) -> KafkaImage:
    segment(tmp_path, 0, batch(0, *of, version=version))
    entries = read_entries(tmp_path)
    assert entries is not None
    return image_of(entries)


def test_a_topic_goes_with_its_settings(tmp_path: Path) -> None:
    setting = config(TOPIC, "a", "retention.ms", "1")
    found = image(tmp_path, *topic("a", A), setting, RemoveTopicRecord(topic_id=A), *topic("a", B))
    assert [one.topic_id for one in found.topics.values()] == [B]
    assert found.settings_of("a") == {}


def test_partitions_change_and_each_leader_begins_an_epoch(tmp_path: Path) -> None:
    found = image(
        tmp_path, *topic("a", A, [[1], [2, 3]]),
        PartitionChangeRecord(partition_id=1, topic_id=A, leader=3),
        PartitionChangeRecord(partition_id=1, topic_id=A, leader=-1),
        PartitionChangeRecord(partition_id=1, topic_id=A, replicas=(1, 2), adding_replicas=(1,)),
    )  # fmt: skip
    assert found.topics[A].partitions == {
        0: KafkaPartition((1,), (), 0),
        1: KafkaPartition((1, 2), (1,), 2),
    }


@pytest.mark.parametrize("version", [1, 2])
def test_newer_partitions_name_directories(tmp_path: Path, version: int) -> None:
    record = PartitionRecord(
        partition_id=0, topic_id=A, replicas=(1,), isr=(1,), removing_replicas=(),
        adding_replicas=(), leader=1, leader_epoch=7, partition_epoch=9, directories=(A, B),
    )  # fmt: skip
    segment(tmp_path, 0, batch(0, *topic("a", A, [])), batch(1, record, version=version))
    entries = read_entries(tmp_path)
    assert entries is not None
    assert image_of(entries).topics[A].partitions == {0: KafkaPartition((1,), (), 7)}


def test_settings_are_set_and_removed(tmp_path: Path) -> None:
    found = image(
        tmp_path, config(BROKER, "", "a", "1"), config(BROKER, "1", "b", "2"),
        config(BROKER, "", "a", None), config(BROKER, "", "c", "3"),
    )  # fmt: skip
    assert found.settings == {(BROKER, ""): {"c": "3"}, (BROKER, "1"): {"b": "2"}}


def test_acls_come_and_go(tmp_path: Path) -> None:
    found = image(tmp_path, ENTRY)
    assert list(found.acls.values()) == [
        AclBinding(
            ResourceType.TOPIC, PatternType.PREFIXED, "t", "User:u", "*", Operation.READ,
            Permission.DENY,
        )
    ]  # fmt: skip
    assert image(tmp_path, ENTRY, RemoveAccessControlEntryRecord(id=A)).acls == {}


def test_credentials_come_and_go(tmp_path: Path) -> None:
    record = UserScramCredentialRecord(
        name="u", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    assert image(tmp_path, record).credentials == {
        ("u", ScramMechanism.SHA_512): ScramCredential(b"s", b"k", b"v", 4096)
    }
    gone = RemoveUserScramCredentialRecord(name="u", mechanism=2)
    assert image(tmp_path, record, gone).credentials == {}


def test_quotas_come_and_go(tmp_path: Path) -> None:
    of = (
        EntityData(entity_type="user", entity_name="u"),
        EntityData(entity_type="client-id", entity_name=None),
    )
    quotas = [
        ClientQuotaRecord(entity=of, key="a", value=1.5, remove=False),
        ClientQuotaRecord(entity=of[::-1], key="b", value=2.0, remove=False),
        ClientQuotaRecord(entity=of, key="a", value=0.0, remove=True),
    ]
    found = image(tmp_path, *quotas).client_quotas
    assert found == {(("client-id", None), ("user", "u")): {"b": 2.0}}


def test_producer_ids_never_go_back(tmp_path: Path) -> None:
    ids = [
        ProducerIdsRecord(broker_id=1, broker_epoch=n, next_producer_id=next_id)
        for n, next_id in enumerate((1000, 3000, 2000))
    ]
    assert image(tmp_path, *ids).producer_id_next == 3000


def test_a_migration_is_as_far_as_it_says(tmp_path: Path) -> None:
    assert image(tmp_path, ZkMigrationStateRecord(zk_migration_state=2)).zookeeper_migration == 2


def test_voters_are_those_of_the_log_or_of_the_quorum_state(tmp_path: Path) -> None:
    voters = tuple(
        Voter(
            voter_id=n, voter_directory_id=A,
            endpoints=(VoterEndpoint(name="C", host="h", port=9093),),
            kraft_version_feature=KRaftVersionFeature(
                min_supported_version=0, max_supported_version=1
            ),
        )
        for n in (1, 2)
    )  # fmt: skip
    record = encode(VotersRecord(version=0, voters=voters), 0)
    segment(tmp_path, 0, control(0, VOTERS, record))
    entries = read_entries(tmp_path)
    assert entries is not None
    assert image_of(entries).voters == {1, 2}
    assert voters_in(b'{"currentVoters":[{"voterId":1},{"voterId":7}],"data_version":0}') == {1, 7}
    assert voters_in(b'{"leaderId":1,"data_version":1}') == set()
    with pytest.raises(CorruptData):
        voters_in(b"[]")


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ((29,), "no Kafka up to 4.3 has records of type 29"),
        ((RemoveTopicRecord(topic_id=A),), "of nothing"),
        ((PartitionChangeRecord(partition_id=0, topic_id=A),), "of nothing"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, of: tuple[object, ...], why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        image(tmp_path, *of)


def test_a_newer_version_of_a_record_is_refused(tmp_path: Path) -> None:
    newer = build_batch([NewRecord(None, b"\1\x09\1" + A.bytes + b"\0")], BatchSpec(0))
    segment(tmp_path, 0, newer)
    entries = read_entries(tmp_path)
    assert entries is not None
    with pytest.raises(CorruptData, match="offset 0"):
        image_of(entries)
