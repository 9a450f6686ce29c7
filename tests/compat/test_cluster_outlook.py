"""`plan`, `explain` and `rounds show` of a whole cluster, asked of any of its brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.main import main
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning
from tests.support.broker.cluster import Brokers, keyed, running

Lines = list[dict[str, Any]]


def asked(capsys: pytest.CaptureFixture[str], brokers: Brokers, *words: str) -> tuple[int, Lines]:
    """By the address of one broker, another one each time."""
    one = list(brokers.processes.values())[len(words) % 3]
    address = one.bootstrap if one.runs else brokers.bootstrap
    code = main([*words, "--bootstrap-server", address, "--json"])
    out, err = capsys.readouterr()
    assert not err, err
    return code, [json.loads(line) for line in out.splitlines()]


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

        everywhere = ("--bootstrap-server", brokers.processes[2].bootstrap)
        for verb, words in (("pause", "paused since"), ("resume", "go on")):
            assert main(["rounds", verb, *everywhere]) == 0
            told = capsys.readouterr().out.splitlines()
            assert [line[:9] for line in told] == ["broker 1:", "broker 2:", "broker 3:"]
            assert all(words in line for line in told)

        code, plan = asked(capsys, brokers, "plan")
        assert code == 0
        assert [(line["partition"], line["broker"], line["policy"]) for line in plan] == [
            ("t-0", 1, "compact"), ("t-0", 2, "compact"), ("t-0", 3, "compact"),
            ("two-0", 2, "compact"), ("two-0", 3, "compact"),
        ]  # fmt: skip
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
