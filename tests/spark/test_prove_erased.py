"""Erased keys looked for on Spark: what is found in this process, and whatever becomes of tasks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.lifecycle.erase import replicas, sign
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, REMAINS, judge
from lapse.lifecycle.erase.replicas import NOT_THERE, ReplicaFindings, Run, Where, look_through
from lapse.lifecycle.erase.search import Search, make_search, spec_of
from lapse.lifecycle.round.progress import Progress
from lapse.records.layout import Codec
from lapse.spark.actions.proof import look_at, prove
from lapse.spark.actions.words import words_of
from lapse.spark.rounds import erase as erase_job
from lapse.spark.rounds.erase import DEATHS_MAX, DIED, SparkAudits, spark_audits
from lapse.spark.session.jobs import ActionFailed, Jobs
from lapse.spark.session.session import OpenSession, SessionOptions
from tests.support.lifecycle.erase.replica import FIRST, KEY, NEVER, batch, damaged, others, written

ASKED = {"topic": "t", "key": [KEY.decode()]}


def key_in(folder: Path) -> Path:
    """Of these tests: a task has its own environment, and would make one where it is at home."""
    sign.load_or_make_key(RealFs(), folder / "key.pem")
    return folder / "key.pem"


def quiet(_: Progress) -> None:
    """Nobody watches."""


def on_spark(session: OpenSession, search: Search) -> SparkAudits:
    return SparkAudits(session.spark.sparkContext, search, SystemClock(), quiet)


def looked(replica: Path, run: Run) -> ReplicaFindings:
    return look_through(Where(str(replica), "t"), run, SystemClock())


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """Files of all kinds: segments, one damaged, one of a round's attempt, one of nobody's."""
    path = tmp_path / "replica"
    for n in range(30):
        codec = list(Codec)[n % 5]
        written(path / f"t-{n % 4}" / f"{n:020d}.log", *(others(m, codec=codec) for m in range(50)))
    written(path / "t-0" / f"{100:020d}.log", batch(100, KEY), batch(101, KEY, value=None))
    written(path / "t-1" / f"{100:020d}.log.deleted", damaged(batch(100, KEY, codec=Codec.ZSTD)))
    written(path / "t-2" / ".lapse" / "r" / "a" / f"{100:020d}-records", batch(100, KEY))
    written(path / "t-3" / "core", b"\x00\x07" + KEY)
    return path


def test_the_findings_are_those_of_this_process(replica: Path, session: OpenSession) -> None:
    for search in (make_search([KEY, NEVER]), make_search([NEVER])):
        here = looked(replica, InlineAudits(search, SystemClock(), quiet))
        assert looked(replica, on_spark(session, search)) == here
        assert sum(len(found.counts) for found in here.files) == (4 if KEY in search.keys else 0)


def test_the_report_is_the_same_but_for_its_time_and_salt(
    replica: Path, session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By the command, which has the tests' session in place of one of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(erase_job, "open_session", lambda _: session)
    monkeypatch.setattr(erase_job, "stop_jvm", lambda: None)
    monkeypatch.setattr(session.spark, "stop", lambda: None)
    reports = [report_of(capsys, replica, engine) for engine in ("inline", "spark")]
    assert reports[0] == reports[1]
    assert reports[0][1]["verdict"]["state"] == REMAINS


def test_the_action_finds_the_same_in_several_tasks(
    replica: Path, session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(erase_job, "BIN_COST_BYTES_MIN", 1 << 20)  # of small files too
    _, expected = report_of(capsys, replica, "inline")
    told: list[tuple[str, int, int]] = []
    jobs = Jobs(session.spark, lambda what, done, total: told.append((what, done, total)))
    path = tmp_path / "report.json"
    asked = {**ASKED, "replica": replica, "report": path, "sign_with": key_in(tmp_path)}
    sealed = prove(jobs, words_of("prove-erased", None, asked))
    assert plain(sealed) == expected
    assert path.read_text() == sealed
    [tasks] = {total for what, _, total in told if what == "looking through 34 files"}
    assert tasks > 1
    with pytest.raises(ActionFailed, match="is there already; a report is never written over"):
        prove(jobs, words_of("prove-erased", None, asked))
    with pytest.raises(ConfigError, match="--topic: needed"):
        prove(jobs, words_of("prove-erased", None, {"replica": replica}))


def test_a_task_of_the_action_that_sees_other_files_proves_nothing(
    tmp_path: Path, session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "LISTINGS_MAX", 4)
    written(tmp_path / "here" / "t-0" / FIRST, batch(0, KEY))
    written(tmp_path / "there" / "t-0" / FIRST, others(0))
    monkeypatch.setattr(
        "lapse.spark.actions.proof.look_at",
        lambda some: look_at(some.replace(b"/here", b"/there")),
    )
    asked = {**ASKED, "replica": tmp_path / "here", "sign_with": key_in(tmp_path)}
    sealed = prove(Jobs(session.spark), words_of("prove-erased", None, asked))
    assert plain(sealed)["verdict"]["state"] == NOT_PROVEN


def test_spark_goes_while_nothing_is_to_be_done_and_comes_back_for_much(
    replica: Path, session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' session in place of its own: how often it is opened and stopped is what counts."""
    opened, stopped = [], []
    monkeypatch.setattr(erase_job, "open_session", lambda _: opened.append(1) or session)
    monkeypatch.setattr(erase_job, "stop_jvm", lambda: stopped.append(1))
    monkeypatch.setattr(session.spark, "stop", lambda: None)
    search = make_search([KEY, NEVER])
    here = looked(replica, InlineAudits(search, SystemClock(), quiet))
    with spark_audits(SessionOptions("local[2]"), SystemClock(), quiet) as runs:
        run = runs(search)
        assert (len(opened), looked(replica, run), len(opened)) == (0, here, 1)
        runs.rest()
        runs.rest()
        assert (len(stopped), looked(replica, run), len(opened)) == (1, here, 1), "some megabytes"
        monkeypatch.setattr(erase_job, "HERE_BYTES_MAX", 1)
        assert (looked(replica, run), len(opened)) == (here, 2)
    assert len(stopped) == 2


def report_of(
    capsys: pytest.CaptureFixture[str], replica: Path, engine: str
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    words = ["--topic", "t", "--key", KEY.decode(), "--replica", str(replica), "--json"]
    code = main(["prove-erased", *words, "--engine", engine])
    return code, plain(capsys.readouterr().out)


def plain(sealed: str) -> dict[str, Any]:
    """A report, but for its time, its salt and who signed it."""
    report: dict[str, Any] = json.loads(sealed)["report"]
    report["key_id"] = ""
    for changes in ("started_ms", "ended_ms"):
        report[changes] = 0
    report["asked"] |= {"salt": "", "keys": []}
    return report


def verdict_of(replica: ReplicaFindings, search: Search) -> str:
    return judge([replica], spec_of(search, "00"), "t").state


@pytest.mark.parametrize("deaths", [1, 99])
def test_a_worker_that_dies_costs_an_attempt_or_a_file_but_no_other(
    deaths: int, tmp_path: Path, session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files share a task. What kills its workers time and again is not proven; the rest is."""
    search = make_search([NEVER])
    for name in (FIRST, "deadly"):
        written(tmp_path / "t-0" / name, others(0))
    here = looked(tmp_path, InlineAudits(search, SystemClock(), quiet))
    assert verdict_of(here, search) == PROVEN
    monkeypatch.setattr(erase_job, "audit_bins", killed_by(b"deadly", deaths))
    seen = looked(tmp_path, on_spark(session, search))
    if deaths == 1:
        assert seen == here
        return
    assert [(found.path, found.problem) for found in seen.files] == [
        (f"t-0/{FIRST}", None), ("t-0/deadly", DIED),
    ]  # fmt: skip
    assert seen.files[0] == here.files[0]
    assert verdict_of(seen, search) == NOT_PROVEN


def killed_by(name: bytes, deaths: int) -> Callable[[bytes, Iterable[bytes]], Iterator[bytes]]:
    """The work of a task whose worker dies over a file, in its first attempts."""
    work = erase_job.audit_bins

    def deadly(search: bytes, bins: Iterable[bytes]) -> Iterator[bytes]:
        attempt = TaskContext.get().attemptNumber()
        for encoded in bins:
            if name in encoded and attempt < min(deaths, DEATHS_MAX):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from work(search, [encoded])

    return deadly


def test_a_job_that_is_cancelled_proves_nothing(
    replica: Path, session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = make_search([NEVER])
    context = session.spark.sparkContext
    audits = SparkAudits(context, search, SystemClock(), lambda _: context.cancelAllJobs())
    monkeypatch.setattr(erase_job, "audit_bins", slowly())
    seen = looked(replica, audits)
    problems = {found.problem for found in seen.files}
    assert any("the Spark job failed" in (problem or "") for problem in problems)
    assert verdict_of(seen, search) == NOT_PROVEN


def slowly() -> Callable[[bytes, Iterable[bytes]], Iterator[bytes]]:
    """Work that would take longer than a test may."""

    def sleep(search: bytes, bins: Iterable[bytes]) -> Iterator[bytes]:
        time.sleep(600)
        yield from bins

    return sleep


def test_where_tasks_see_other_files_than_we_do_ours_count(
    tmp_path: Path, session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine has a directory of the same name, without the record."""
    search = make_search([KEY])
    written(tmp_path / "here" / "t-0" / FIRST, batch(0, KEY))
    written(tmp_path / "there" / "t-0" / FIRST, others(0))
    monkeypatch.setattr(erase_job, "audit_bins", elsewhere(b"/here", b"/there"))
    seen = looked(tmp_path / "here", on_spark(session, search))
    assert verdict_of(seen, search) == REMAINS
    monkeypatch.setattr(erase_job, "audit_bins", elsewhere(b"/here", b"/nowhere"))
    seen = looked(tmp_path / "here", on_spark(session, search))
    assert [found.problem for found in seen.files] == [NOT_THERE]


def elsewhere(here: bytes, there: bytes) -> Callable[[bytes, Iterable[bytes]], Iterator[bytes]]:
    """The work of a task for which the replica is in another place."""
    work = erase_job.audit_bins

    def moved(search: bytes, bins: Iterable[bytes]) -> Iterator[bytes]:
        yield from work(search, [encoded.replace(here, there) for encoded in bins])

    return moved
