"""`lapse demo` says at once what it cannot play."""

from __future__ import annotations

import pytest

from lapse.cli.main import main


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (option, value)
        for option in ("--seconds", "--service-seconds")
        for value in ("0", "-1", "nan", "inf", "86400")
    ]
    + [("--brokers", "0"), ("--brokers", "-1")],
)
def test_what_is_not_allowed(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"{option}={value}"]) == 2
    said = capsys.readouterr().err
    assert f"{option} {value}: allowed is" in said
