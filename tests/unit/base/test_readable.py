"""What is shown of bytes: text as it is, and nothing that a terminal obeys."""

from __future__ import annotations

import pytest

from lapse.base.readable import SHORT_MAX, readable, shortened


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        (b"user-17", "user-17"),
        ("Größe 大きさ".encode(), "Größe 大きさ"),
        (b"a\tb\nc\r", r"a\tb\nc\r"),
        (b"\x1b[31mred\x07", r"\x1b[31mred\x07"),
        (b"\xff\x00k", r"\xff\x00k"),
        ("\u202egnp.exe".encode(), r"\u202egnp.exe"),
        ("\x9b2J".encode(), r"\x9b2J"),
    ],
)
def test_bytes_as_text(data: bytes, shown: str) -> None:
    assert readable(data) == shown


def test_what_is_long_is_cut_and_says_how_long_it_was() -> None:
    assert shortened("a" * SHORT_MAX) == "a" * SHORT_MAX
    cut = shortened("a" * 500_000 + ": no such user")
    assert len(cut) == SHORT_MAX
    assert cut.startswith("aaa")
    assert " … (500014 characters) … aaa" in cut
    assert cut.endswith("aaa: no such user")
    assert shortened(cut) == cut
