"""Another user of the machine at all that a session of Spark listens at, and in its folders.

The stranger is `nobody`, with Spark's own classes (`Stranger.java`): he asks the executor to stop,
fetches a block, tries py4j's gateway and every socket. Nothing may open, and rounds go on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from lapse.spark.session.java import find_java
from lapse.spark.session.session import OpenSession
from tests.spark import processes
from tests.spark.driver import DriverProcess
from tests.spark.processes import Listener, needs_proc
from tests.spark.test_engine import owning, plans_of
from tests.support.lifecycle.rounds import overwritten

NOBODY = 65534
SECONDS_MAX = 240
JARS = Path(pyspark.__file__).parent / "jars"
OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.lang.invoke", "java.util")

pytestmark = [
    needs_proc,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else"),
    pytest.mark.skipif(not shutil.which("javac"), reason="compiles by javac, which is not there"),
]


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A folder that everybody may look into, the temporary one of the session."""
    path = Path(tempfile.mkdtemp(prefix="lapse-strangers-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def driver(public: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(public))
        made = DriverProcess("local[2]", tmp_path_factory.mktemp("log") / "driver.log")
    yield made
    made.end()
    made.wait_until_gone()


@pytest.fixture(scope="module")
def doors(driver: DriverProcess) -> list[Listener]:
    return processes.listeners(processes.session_pids(driver.pid))


def tries(public: Path, doors: list[Listener], *more: str) -> list[tuple[str, str, str]]:
    """Each door, what was tried at it, and what came of it, as another user."""
    classes = public / "classes"
    java = find_java(os.environ).home / "bin" / "java"
    if not classes.exists():
        source = Path(__file__).with_name("Stranger.java")
        subprocess.run(
            ["javac", "-d", classes, "-cp", f"{JARS}/*", source], check=True,
            timeout=SECONDS_MAX,
        )  # fmt: skip
    words = [f"{one.kind}:{one.at}" for one in doors]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    done = subprocess.run(
        [java, *opened, "-cp", f"{classes}:{JARS}/*", "Stranger", *words, *more],
        user=NOBODY, group=NOBODY, extra_groups=(), cwd="/", env={}, capture_output=True,
        text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    found = []
    for line in done.stdout.splitlines():
        door, what, outcome = line.split("\t")
        found.append((door, what, outcome))
    assert found, done.stderr
    return found


def test_only_java_listens_and_only_on_loopback(
    driver: DriverProcess, doors: list[Listener]
) -> None:
    """The driver's RPC, its blocks and py4j's gateway; Python is reached by files alone."""
    words = processes.words_of_all()
    tcp = [one for one in doors if one.kind == "tcp"]
    assert {one.host for one in tcp} == {"127.0.0.1"}
    assert {Path(words[one.pid][0]).name for one in tcp} == {"java"}
    assert len(tcp) == 3
    assert any(one.kind == "unix" for one in doors)


def test_nobody_else_gets_in_and_rounds_go_on(
    driver: DriverProcess, doors: list[Listener], public: Path, tmp_path: Path
) -> None:
    folders = [f"folder:{path}" for path in public.iterdir() if path.name != "classes"]
    assert len(folders) == 1, "the session's folder, and nothing beside it"
    found = tries(public, doors, *folders)
    assert len({door for door, _, _ in found}) == len(doors) + 1
    assert [one for one in found if not one[2].startswith("out: ")] == []
    with owning(tmp_path / "data", {"a": overwritten(times=30)}) as owner:
        receipts = list(driver.run(plans_of(owner, "after-")))
        assert [r.error for r in receipts] == [None]


def test_the_secret_is_new_and_on_no_command_line(session: OpenSession, tmp_path: Path) -> None:
    """Also where executors are processes of their own, which get it in their environment."""
    context = session.spark.sparkContext
    jvm = context._jvm
    assert jvm is not None
    ours = {jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()}
    ours.add(context.getConf().get("spark.authenticate.secret"))
    log = tmp_path / "driver.log"
    other = DriverProcess("local-cluster[1,1,1024]", log)
    try:
        environments = [
            dict(line.partition("=")[::2] for line in path.read_text().split("\0"))
            for pid in processes.executor_pids(other.pid)
            if (path := Path("/proc", str(pid), "environ")).exists()
        ]
        theirs = {told["_SPARK_AUTH_SECRET"] for told in environments}
        assert len(theirs) == 1
        assert theirs.isdisjoint(ours)
        known = " ".join(word for words in processes.words_of_all().values() for word in words)
        assert [secret for secret in ours | theirs if secret is None or secret in known] == []
        assert not any(secret in log.read_text() for secret in theirs)
    finally:
        other.end()
        other.wait_until_gone()
