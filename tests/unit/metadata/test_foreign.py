"""A real Kafka's directory, told from ours before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from lapse.base.errors import ConfigError
from lapse.metadata.foreign import refuse_foreign
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import TopicRecord


def keep(log_dir: Path, *topics: str) -> None:
    store = SqliteStore(log_dir / STORE, str)
    store.create_topics([TopicRecord(name, uuid4(), 1, {}) for name in topics])
    store.close()


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a", tmp_path / "b"]
    for path in found:
        path.mkdir()
    return found


def test_empty_and_missing_ones_are_fine(dirs: list[Path], tmp_path: Path) -> None:
    refuse_foreign(dirs)
    refuse_foreign([tmp_path / "none"])
    (dirs[0] / "lost+found").mkdir()
    (dirs[0] / "meta.properties").touch()  # of a directory that was emptied, or of ours
    refuse_foreign(dirs)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", ["__cluster_metadata-0", "orders-3"])
def test_logs_that_no_metadata_knows_are_refused(dirs: list[Path], place: int, name: str) -> None:
    (dirs[place] / name).mkdir()
    with pytest.raises(ConfigError, match=rf"log.dirs={dirs[place]}: it holds logs \({name}\)"):
        refuse_foreign(dirs)


def test_ours_are_known_by_the_store_of_the_first_one(dirs: list[Path]) -> None:
    keep(dirs[0], "orders")
    (dirs[1] / "orders-0").mkdir()
    (dirs[1] / "stranger-0").mkdir()
    refuse_foreign(dirs)
    with pytest.raises(ConfigError, match=str(dirs[1])):
        refuse_foreign(dirs[::-1])


def test_an_empty_store_counts_for_nothing_beside_kafkas_metadata(dirs: list[Path]) -> None:
    keep(dirs[0])
    (dirs[0] / "orders-0").mkdir()
    refuse_foreign(dirs)  # its topic was deleted
    (dirs[0] / "__cluster_metadata-0").mkdir()
    with pytest.raises(ConfigError, match=r"it holds logs \(__cluster_metadata-0, orders-0\)"):
        refuse_foreign(dirs)
    shutil.rmtree(dirs[0] / "__cluster_metadata-0")
    refuse_foreign(dirs)


def test_a_store_that_cannot_be_read_is_not_judged_here(dirs: list[Path]) -> None:
    (dirs[0] / STORE).write_bytes(b"nonsense" * 1000)
    (dirs[0] / "orders-0").mkdir()
    refuse_foreign(dirs)


def test_with_zookeeper_there_is_no_other_metadata(dirs: list[Path]) -> None:
    """Whose the logs are is then said by meta.properties."""
    (dirs[1] / "orders-0").mkdir()
    refuse_foreign(dirs, "zk:2181/lapse")
    keep(dirs[0])
    refuse_foreign(dirs, "zk:2181/lapse")
    keep(dirs[0], "orders")
    with pytest.raises(ConfigError, match=rf"^zookeeper.connect=zk:2181/lapse: {dirs[0]} has its"):
        refuse_foreign(dirs, "zk:2181/lapse")


def test_with_zookeeper_a_real_kafkas_is_refused_all_the_same(dirs: list[Path]) -> None:
    (dirs[1] / "__cluster_metadata-0").mkdir()
    with pytest.raises(ConfigError, match="those of a real Kafka"):
        refuse_foreign(dirs, "zk:2181")
