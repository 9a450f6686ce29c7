"""`plan`, `explain` and `rounds show` of a whole cluster, asked of any of its brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lapse.base.clock import SystemClock
from lapse.cli.main import main
from lapse.spark.views.spec import PLAN, SEGMENTS
from lapse.spark.views.wire import BrokersAway
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning
from tests.support.broker.cluster import Brokers, keyed, running
from tests.support.spark.views.fleet import Rows, rows

Lines = list[dict[str, Any]]


def asked(capsys: pytest.CaptureFixture[str], brokers: Brokers, *words: str) -> tuple[int, Lines]:
    """By the address of one broker, another one each time."""
    one = list(brokers.processes.values())[len(words) % 3]
    address = one.bootstrap if one.runs else brokers.bootstrap
    code = main([*words, "--bootstrap-server", address, "--json"])
    out, err = capsys.readouterr()
    assert not err, err
    return code, [json.loads(line) for line in out.splitlines()]


def said(view: str, brokers: Brokers, **changes: Any) -> Rows:
    """As Spark's view has it, of all brokers."""
    wire = {"paths": (), "settings": (), "bootstrap": brokers.bootstrap}
    found = rows(view, Path(), SystemClock().now_ms(), **{**wire, **changes})
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["broker"]))


def require_views_say(brokers: Brokers, plan: Lines) -> None:
    """Spark's views have the same of all replicas."""
    told = said(PLAN, brokers)
    assert [(row["broker"], row["topic"], row["policy"]) for row in told] == [
        (line["broker"], line["partition"].removesuffix("-0"), line["policy"]) for line in plan
    ]
    segments = said(SEGMENTS, brokers, topics=("two",))
    assert [(row["broker"], row["end_offset"]) for row in segments] == [(2, 1), (3, 1)]


def require_views_miss(brokers: Brokers, away: int) -> None:
    """They say so, unless that is wanted."""
    with pytest.raises(BrokersAway, match=f"of what broker {away} has"):
        said(PLAN, brokers)
    left = said(PLAN, brokers, fail_on_data_loss=False)
    assert {row["broker"] for row in left} == {1, 2, 3} - {away}


def require_pause(capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
    """All services pause, and go on."""
    for verb, words in (("pause", "paused since"), ("resume", "go on")):
        assert main(["rounds", verb, "--bootstrap-server", bootstrap]) == 0
        told = capsys.readouterr().out.splitlines()
        assert [line[:9] for line in told] == ["broker 1:", "broker 2:", "broker 3:"]
        assert all(words in line for line in told)


def test_all_brokers_say_it_of_their_own_logs(
    tmp_path: Path, shared: ZooKeeperProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, shared, BROKER) as brokers, cleaning(brokers):
        brokers.create_at("t", 1, 2, 3, **AT_ONCE)
        brokers.create_at("two", 2, 3, cleanup_policy="compact", min_cleanable_dirty_ratio="0.9")
        keyed(brokers, "two", [(b"k", b"v")])
        away = 3
        brokers.until(
            lambda: {line["broker"] for line in asked(capsys, brokers, "rounds", "show")[1]
                     if line["running"]} == {1, 2, 3},
            "all services",
        )  # fmt: skip

        require_pause(capsys, brokers.processes[2].bootstrap)
        code, plan = asked(capsys, brokers, "plan")
        assert code == 0
        assert [(line["partition"], line["broker"], line["policy"]) for line in plan] == [
            ("t-0", 1, "compact"), ("t-0", 2, "compact"), ("t-0", 3, "compact"),
            ("two-0", 2, "compact"), ("two-0", 3, "compact"),
        ]  # fmt: skip
        require_views_say(brokers, plan)

        code, two = asked(capsys, brokers, "explain", "two")
        assert code == 0
        assert [(line["partition"], line["broker"], line["rule"]) for line in two] == [
            ("two-0", 2, "active-segment"), ("two-0", 3, "active-segment"),
        ]  # fmt: skip
        code, fate = asked(capsys, brokers, "explain", "--partition", "two-0", "--offset", "0")
        assert [line["fate"]["state"] for line in fate] == ["there", "there"]

        # A replica that is away holds a tombstone; the others say so, and that nobody asked it.
        keyed(brokers, "t", [(b"erased", b"secret")])
        brokers.processes[away].kill()
        keyed(brokers, "t", [(b"erased", None), (b"more", b"1")])

        def held_by() -> bool:
            _, lines = asked(capsys, brokers, "explain", "t")
            told = [line for line in lines if line["partition"] == "t-0"]
            return len(told) == 2 and all(f"replica {away}" in line["text"] for line in told)

        brokers.until(held_by, "who holds the tombstone")
        code, lines = asked(capsys, brokers, "explain", "t")
        assert code == 1
        require_views_miss(brokers, away)
        silent = [line for line in lines if line["partition"] == "(broker)"]
        assert [(line["broker"], line["text"]) for line in silent] == [
            (away, "it is away; what it has is not judged")
        ]
        assert main(["explain", "nothing", "--bootstrap-server", brokers.bootstrap]) == 3
        assert "no broker has such a log of topic nothing" in capsys.readouterr().err
        for one in (1, 2):
            brokers.processes[one].kill()
        assert main(["plan", "--bootstrap-server", brokers.bootstrap]) == 3
        assert "cannot connect" in capsys.readouterr().err
