"""A command in a task: what it prints, says and raises comes back in one answer."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.cli.remote import connection
from lapse.spark.actions.task import Command, Ended, answered, arguments, parsed, run_command


def ended(*words: str) -> Ended:
    answer = run_command(msgspec.json.encode(Command(words)))
    return msgspec.json.decode(answer, type=Ended)


def test_what_is_printed_and_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    told = ended("plan", "--json", str(tmp_path))
    assert (told.code, told.error, told.printed.count("\n")) == (1, "", 1)
    assert '"partition":"t-0"' in told.printed
    assert capfd.readouterr() == ("", ""), "a worker's own output is no place for it"


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("plan", "/no/such"), 3, "/no/such: no such directory"),
        (("plan", "/no/such", "--memory=x"), 2, "--memory x: allowed is a size"),
        (("plan", "--now=-1", "/"), 2, "argument --now: -1: allowed is a whole number"),
        (("plan", "--nonsense", "/"), 2, "there is no option --nonsense"),
        (("dump",), 2, "the following arguments are required"),
    ],
)
def test_what_went_wrong(words: tuple[str, ...], code: int, error: str) -> None:
    told = ended(*words)
    assert (told.code, told.printed) == (code, "")
    assert told.error.startswith(error)
    assert "see `" not in told.error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("no"), 2, "no"),
        (StorageError("full"), 3, "full"),
        (FileNotFoundError(2, "No such file or directory", "/x"), 3, "/x"),
        (ZeroDivisionError("a bug"), 3, "ZeroDivisionError: a bug"),
    ],
)
def test_no_error_is_left_to_spark(error: Exception, code: int, text: str) -> None:
    """It would run the task again, and show Java's stack."""

    @answered
    def fail(_: bytes) -> None:
        raise error

    told = msgspec.json.decode(fail(b""), type=Ended)
    assert told.code == code
    assert text in told.error


def test_the_words_mean_what_they_mean_on_a_command_line() -> None:
    args = parsed(("clean", "-ca=b", "--first-dirty=7", "--", "/data"))
    assert (args.logdir, args.first_dirty, args.settings) == (Path("/data"), 7, ["a=b"])


def test_a_clients_settings_are_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark kills the worker of a task that is broken off, and a file of secrets would stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[object] = []

    def run(args: Namespace) -> int:
        seen.append(dict(connection(args).properties))
        seen.append(list(tmp_path.rglob("*")))
        return 0

    client = {"sasl.jaas.config": 'a="b c";\nd', "!odd #=: name": "\\ \t"}
    command = Command(("topic", "list", "--bootstrap-server=b:1"), client)
    monkeypatch.setattr("lapse.cli.topic.run", run)
    assert msgspec.json.decode(run_command(msgspec.json.encode(command)), type=Ended).error == ""
    assert seen == [client, []]
    assert "b c" not in repr(command)
    assert arguments(Command(("topic", "list"))).command_config is None


def test_a_command_that_talks_to_no_broker_takes_no_client() -> None:
    with pytest.raises(ConfigError, match="lapse dump talks to no broker, and takes no client"):
        arguments(Command(("dump", "/data"), {"sasl.mechanism": "PLAIN"}))
