"""Copies of partitions whose topic was deleted: no record stays behind in one."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from lapse.base.fs import RealFs
from lapse.log.checkpoints import PARTITION_METADATA, write_topic_id
from lapse.log.directory import LogDirectory
from lapse.log.folders import FUTURE, folder_name, list_copies, list_doomed
from lapse.log.relocation import WHOLE, Copy, drop_strange_copies, put_copies_away, settle
from tests.support.log.logs import NOW, TP, append, batch, config, env

FS, THIS, OTHER = RealFs(), uuid4(), uuid4()


def copy_in(log_dir: Path, topic_id: UUID | None, *, records: bool, whole: bool = False) -> Path:
    path = log_dir / folder_name(TP, "0123456789abcdef" * 2, FUTURE)
    (path / ".lapse").mkdir(parents=True)
    if topic_id is not None:
        write_topic_id(FS, path, topic_id)
    if records:
        (path / f"{0:020d}.log").write_bytes(b"records")
    if whole:
        (path / ".lapse" / WHOLE).touch()
    return path


def test_a_copy_says_whose_it_is_before_it_has_records(tmp_path: Path) -> None:
    old, new = (LogDirectory.open(tmp_path / name, env()) for name in ("old", "new"))
    log = old.create_log(TP, config(), topic_id=THIS)
    append(log, batch())
    copy = Copy(log, new.path / folder_name(TP, "0" * 32, FUTURE), FS)
    copy.begin()
    while not list(copy.folder.glob("*.log")):
        copy.bring_some(1)
    assert (copy.folder / PARTITION_METADATA).exists()
    for directory in (old, new):
        directory.close()


@pytest.mark.parametrize(("topic_id", "goes"), [(THIS, True), (OTHER, False), (None, False)])
def test_it_goes_with_its_topic(tmp_path: Path, topic_id: UUID | None, goes: bool) -> None:
    directory = LogDirectory.open(tmp_path, env())
    copy_in(tmp_path, topic_id, records=True, whole=True)
    put_copies_away(directory, TP, THIS, 100)
    assert (not list_copies(tmp_path), len(list_doomed(tmp_path))) == (goes, int(goes))
    assert (directory.sweep_deleted(NOW), directory.sweep_deleted(NOW + 100)) == (0, int(goes))
    assert list_doomed(tmp_path) == []
    directory.close()


@pytest.mark.parametrize(
    ("topic_id", "records", "whole", "goes"),
    [
        (THIS, True, False, False),
        (OTHER, True, False, True),
        (OTHER, True, True, False),  # it may be all there is
        (None, True, False, False),
        (None, False, False, True),
    ],
)
def test_it_goes_at_the_start_where_its_topic_is_gone(
    tmp_path: Path, topic_id: UUID | None, records: bool, whole: bool, goes: bool
) -> None:
    directory = LogDirectory.open(tmp_path, env())
    path = copy_in(tmp_path, topic_id, records=records, whole=whole)
    drop_strange_copies(directory, {THIS}, FS)
    assert path.exists() is not goes
    directory.close()


@pytest.mark.parametrize(
    ("topic_id", "whole", "goes", "again"),
    [
        (THIS, False, True, True),
        (THIS, True, True, True),
        (OTHER, False, True, False),
        (OTHER, True, False, False),
        (None, False, True, True),
    ],
)
def test_a_topic_made_anew_does_not_move_where_the_one_before_was_to(
    tmp_path: Path, topic_id: UUID | None, whole: bool, goes: bool, again: bool
) -> None:
    old, new = (LogDirectory.open(tmp_path / name, env()) for name in ("old", "new"))
    append(old.create_log(TP, config(), topic_id=THIS), batch())
    path = copy_in(new.path, topic_id, records=True, whole=whole)
    assert settle([old, new], FS, all_there=True) == ([(TP, new)] if again else [])
    assert path.exists() is not goes
    for directory in (old, new):
        directory.close()
