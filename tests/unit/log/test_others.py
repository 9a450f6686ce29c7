"""L3 on the directory alone: what is known of other replicas outlives the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.facts import CleanedTo, ReplicaFacts
from lapse.log.others import NOTHING_KNOWN, Others, others_path, read_others, write_others
from lapse.log.reader import read_facts
from tests.support.log.logs import TP, append, batch, config, env, open_log

KNOWN = (
    ReplicaFacts(2, (CleanedTo(10, 5), CleanedTo(20, 9)), 0),
    ReplicaFacts(3, (), 0, counted=False),
)


def test_what_is_known_is_read_again(tmp_path: Path) -> None:
    assert read_others(tmp_path) == Others()
    for others in (Others(KNOWN, (4, 7)), Others(KNOWN), Others((), (4,)), Others()):
        write_others(RealFs(), tmp_path, others)
        assert read_others(tmp_path) == others


@pytest.mark.parametrize("damage", [b"", b"x", b"00000000\n{}"])
def test_of_a_damaged_file_nothing_is_known(tmp_path: Path, damage: bytes) -> None:
    """So nothing leaves: no counted replica is known to have cleaned anything."""
    write_others(RealFs(), tmp_path, Others(KNOWN))
    others_path(tmp_path).write_bytes(damage)
    assert read_others(tmp_path) == Others(NOTHING_KNOWN)
    assert not NOTHING_KNOWN[0].counted


def test_a_log_goes_by_it_and_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    before = log.mark()
    log.learn_of_others(KNOWN, (4,))
    assert log.facts().replicas == KNOWN
    assert log.mark() != before
    log.close()
    again = open_log(tmp_path / "t-0")
    assert (again.facts().replicas, again.elsewhere) == (KNOWN, (4,))


def test_a_log_that_is_deleted_is_not_begun_anew_by_what_is_learned_late(tmp_path: Path) -> None:
    """Its folder is renamed to go; nobody would take away what is written at its old place."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    directory.delete_log(TP)
    log.learn_of_others(KNOWN)
    assert not (tmp_path / str(TP)).exists()
    directory.close()


def test_what_is_not_committed_is_not_looked_at_as_if_it_were(tmp_path: Path) -> None:
    """Offline too: a tool that cleaned by it would remove what it supersedes, and it may go."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(), replicated=True)
    for _ in range(3):
        append(log, batch())
    log.learn_of_others(KNOWN)
    log.high_watermark = 6
    directory.close()
    facts = read_facts(tmp_path / str(TP), TP)
    assert (facts.high_watermark, facts.last_stable_offset, facts.log_end_offset) == (6, 6, 9)
    assert facts.replicas == KNOWN
    (tmp_path / checkpoints.HIGH_WATERMARK).rename(tmp_path / "away")
    assert read_facts(tmp_path / str(TP), TP).high_watermark == 0  # nothing is known of it
    (tmp_path / "away").rename(tmp_path / checkpoints.HIGH_WATERMARK)
    again = LogDirectory.open(tmp_path, env())
    assert again.open_log(TP, config()).high_watermark == 6  # as a tool opens it
    again.close()
