"""What one replica has lost or damaged is fetched from the others, never taken for the log."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.cli.main import main
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.compat.test_cluster_of_three import produce_at
from tests.support.broker.cluster import Brokers, consumed, produced, running, same_bytes

SMALL = {"internal_segment_bytes": "16384"}


def repair(data: Path, *options: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["repair", str(data), *options])
    return code, said.getvalue()


def segments(data: Path) -> list[Path]:
    return sorted((data / "t-0").glob("*.log"))


def flip(data: Path) -> None:
    second = segments(data)[1]
    octets = bytearray(second.read_bytes())
    octets[len(octets) // 2] ^= 1
    second.write_bytes(octets)


def remove_segment(data: Path) -> None:
    segments(data)[1].unlink()


def remove_folder(data: Path) -> None:
    shutil.rmtree(data / "t-0")


def filled(brokers: Brokers, *order: int) -> list[int]:
    """Several segments, all of them synced."""
    brokers.create_at("t", *order, **SMALL)
    values = produced(brokers, "t", range(3000), **{"batch.num.messages": 50})
    assert len(segments(brokers.processes[order[0]].data)) > 3
    return values


@pytest.mark.combined
@pytest.mark.parametrize("harm", [flip, remove_segment, remove_folder])
@pytest.mark.parametrize("leads", [True, False])
def test_a_replica_is_fetched_anew(
    tmp_path: Path, shared: ZooKeeperProcess, harm: Callable[[Path], None], leads: bool
) -> None:
    with running(tmp_path, shared) as brokers:
        values = filled(brokers, *((1, 2, 3) if leads else (2, 1, 3)))
        harmed = brokers.processes[1]
        harmed.stop()
        harm(harmed.data)
        code, said = repair(harmed.data, "--read")
        assert (code, "--fetch-anew" in said) == (1, True), said
        code, said = repair(harmed.data, "--read", "--accept-hole", "--accept-empty", "--let-go")
        assert code == 1, said  # a hole would be the others', too, once this one leads
        code, said = repair(harmed.data, "--read", "--fetch-anew")
        assert code == 0, said
        code, said = repair(harmed.data, "--read")
        assert (code, "is fetched anew when the broker starts" in said) == (0, True), said
        harmed.start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        for n in (2, 3):
            brokers.processes[n].kill()
        brokers.until(lambda: brokers.leader("t") == 1, "the one that was harmed leads")
        assert consumed(brokers, "t") == values
        assert repair(harmed.data, "--read") == (0, "nothing is missing\n")


def test_what_nobody_else_has_is_not_removed(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    with running(tmp_path, shared) as brokers:
        values = filled(brokers, 1, 2)
        brokers.processes[2].kill()
        brokers.until(lambda: not brokers.in_sync("t"), "2 is not in sync")
        more = produced(brokers, "t", range(3000, 3500))
        harmed = brokers.processes[1]
        harmed.stop()
        remove_segment(harmed.data)
        left = segments(harmed.data)
        assert repair(harmed.data, "--fetch-anew")[0] == 0
        harmed.start()
        brokers.processes[2].start()
        refused = "t-0: is not fetched anew: no other replica that is in sync is there"
        brokers.until(lambda: refused in harmed.log(), "what it says")
        assert segments(harmed.data) == left
        refused_by = asyncio.run(produce_at(harmed.bootstrap, "t", b"1", acks=1))
        assert refused_by is ErrorCode.KAFKA_STORAGE_ERROR
        harmed.stop()
        code, said = repair(harmed.data, "--alone", "--accept-hole")
        assert code == 0, said
        harmed.start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        found = consumed(brokers, "t")
        assert set(more) <= set(found) < {*values, *more}
        assert harmed.log().count(refused) == 1  # it was decided otherwise


def test_nothing_is_removed_while_who_is_in_sync_is_away(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """It may never come back, and then what is left here is all there is."""
    with running(tmp_path, shared) as brokers:
        values = filled(brokers, 1, 2)
        harmed, other = brokers.processes[1], brokers.processes[2]
        harmed.stop()
        remove_segment(harmed.data)
        left = segments(harmed.data)
        assert repair(harmed.data, "--fetch-anew")[0] == 0
        other.kill()
        brokers.until(lambda: all(len(s.brokers) == 1 for s in brokers.seen()), "2 is away")
        harmed.start()
        refused = "t-0: is not fetched anew: no other replica that is in sync is there"
        assert segments(harmed.data) == left
        assert refused in harmed.log()
        other.start()
        brokers.until(lambda: brokers.leader("t") == 2, "2 leads")
        harmed.stop()
        harmed.start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == values
