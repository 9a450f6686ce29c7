"""A broker that is to have more, and lacks room or descriptors for a moment."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.config import broker_config, topic_config
from lapse.base.errors import StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.partitions import Partitions
from lapse.log.roster import ROSTER, read_roster
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import first_state
from tests.support.broker.failing import FullFs, storage_error
from tests.support.log.logs import env

TP = TopicPartition("t", 0)
TOPIC = Topic("t", uuid.uuid4(), 1, {}, topic_config({}), (first_state((1, 2)),))


class NoRoster(FullFs):
    """What a directory has cannot be noted, once it is full."""

    number = errno.ENOSPC

    def check(self, path: Path, _doing: str) -> None:
        if self.is_full and path.name.startswith(ROSTER):
            raise storage_error(self.number)


@pytest.fixture
def fs() -> NoRoster:
    return NoRoster()


@pytest.fixture
def partitions(tmp_path: Path, fs: NoRoster) -> Iterator[Partitions]:
    config = broker_config({"log.dirs": str(tmp_path), "node.id": "1"})
    one = Partitions([tmp_path], config, env(fs))
    one.lock()
    fs.is_full = True
    yield one
    fs.is_full = False
    one.close()


def listed(path: Path) -> set[TopicPartition]:
    found = read_roster(path)
    return set() if found is None else set(found.partitions)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_what_it_has_is_noted_once_there_is_room(
    partitions: Partitions, fs: NoRoster, tmp_path: Path, number: int
) -> None:
    """The log is served meanwhile."""
    fs.number = number
    partitions.open_more(TOPIC, [TP])
    assert partitions.is_online(TP)
    with pytest.raises(StorageError):  # of this a chore says that it fails
        partitions.look_for_room()
    assert listed(tmp_path) == set()
    fs.is_full = False
    partitions.look_for_room()
    assert listed(tmp_path) == {TP}


def test_nothing_is_noted_anew_where_nothing_is_owed(
    partitions: Partitions, fs: NoRoster, tmp_path: Path
) -> None:
    fs.is_full = False
    partitions.open_more(TOPIC, [TP])
    assert listed(tmp_path) == {TP}
    fs.is_full = True
    partitions.look_for_room()


def test_a_disk_that_fails_is_no_lack(partitions: Partitions, fs: NoRoster) -> None:
    fs.number = errno.EIO
    partitions.open_more(TOPIC, [TP])
    assert not partitions.directories
    assert TP in partitions.offline
