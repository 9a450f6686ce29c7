"""Options of commands that talk to a broker, and their tables."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, StorageError
from lapse.cli.remote import add_remote, client_properties, print_table, request_timeout_ms


def test_options() -> None:
    parser = argparse.ArgumentParser()
    add_remote(parser)
    assert parser.parse_args([]).bootstrap_server == "127.0.0.1:9092"
    args = parser.parse_args(["--bootstrap-server", "a:1,b:2", "--command-config", "f"])
    assert (args.bootstrap_server, args.command_config) == ("a:1,b:2", Path("f"))


def test_properties(tmp_path: Path) -> None:
    assert client_properties(None) == {}
    (tmp_path / "f").write_text("request.timeout.ms=5000\n")
    assert client_properties(tmp_path / "f") == {"request.timeout.ms": "5000"}
    with pytest.raises(StorageError, match="nowhere: No such file"):
        client_properties(tmp_path / "nowhere")


def test_timeouts() -> None:
    assert request_timeout_ms({}) == 30_000
    assert request_timeout_ms({"request.timeout.ms": "5000"}) == 5000
    for text in ("0", "-1", "soon", str(1 << 31)):
        with pytest.raises(ConfigError, match=f"request.timeout.ms={text}: allowed"):
            request_timeout_ms({"request.timeout.ms": text})


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([["partition", "at"], ["t-0", "12345"], ["long-name-7", ""]])
    assert capsys.readouterr().out == "partition    at\nt-0          12345\nlong-name-7\n"
