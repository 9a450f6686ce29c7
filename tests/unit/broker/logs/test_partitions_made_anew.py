"""A topic that is deleted and made again by its name has nothing of the one before."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory
from lapse.broker.logs.topics import NewTopic, Topics
from tests.support.log.logs import append, batch, env
from tests.support.metadata.unsure import unsure_store

TP = TopicPartition("t", 0)


class Place:
    """Two log directories, and a store that outlives the broker."""

    def __init__(self, path: Path) -> None:
        self.paths = [path / "a", path / "b"]
        for one in self.paths:
            one.mkdir()
        (self.paths[0] / "lapse-metadata.sqlite").touch()
        _, self.store = unsure_store()

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[tuple[Partitions, Topics]]:
        config = broker_config({"log.dirs": ",".join(map(str, self.paths))})
        partitions, disk = Partitions(self.paths, config, env()), DiskThreads("test")
        partitions.lock()
        topics = Topics(self.store, partitions, disk, Purgatory(), config, Members(config.node_id))
        await topics.load()
        yield partitions, topics
        partitions.close()
        await disk.close()

    async def deleted_in_part(self, partitions: Partitions, topics: Topics) -> None:
        """A topic whose deletion waits for a directory, and another one of its name."""
        old = await topics.create(NewTopic("t", 2, {}))
        [bad] = [one for one in partitions.directories if one.path == self.paths[1]]
        partitions._failed(bad, StorageError("its disk is gone"))
        await topics.delete(old)
        assert [one.name for one in self.store.deletions()] == ["t"]
        await topics.create(NewTopic("t", 1, {}))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_deletion_that_waits_for_a_disk_leaves_the_next_topic_alone(place: Place) -> None:
    """Each reread of what is stored closed its logs, and nothing opened them again."""
    async with place.broker() as (partitions, topics):
        await place.deleted_in_part(partitions, topics)
        log = partitions.get(TP)
        append(log, batch())
        for _ in range(2):
            await topics.reread()
            assert partitions.get(TP) is log
        assert log.log_end_offset == 3


async def test_nor_does_it_hide_that_the_log_of_the_next_one_is_lost(place: Place) -> None:
    """It struck it from what is to be there, and an empty log was made in its place."""
    async with place.broker() as (partitions, topics):
        await place.deleted_in_part(partitions, topics)
        home = partitions.get(TP).dir
    shutil.rmtree(home)
    async with place.broker() as (partitions, topics):
        assert not partitions.is_online(TP)
        assert "its folder is gone" in partitions.offline[TP]
