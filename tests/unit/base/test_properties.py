"""Java's properties format, by the rules of `java.util.Properties`."""

from __future__ import annotations

import pytest

from lapse.base.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a = b c \n", {"a": "b c"}),
        ("a:b\nc d=e", {"a": "b", "c": "d=e"}),
        ("# a=b\n ! c=d\n\n", {}),
        ("novalue\nempty=", {"novalue": "", "empty": ""}),
        ("a=b\na=c", {"a": "c"}),
        ("a=b\\\n   c\\\n\td\ne=f", {"a": "bcd", "e": "f"}),
        ("a=b\\\r\nc\r\nd=e\rf=g", {"a": "bc", "d": "e", "f": "g"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),  # an escaped backslash continues nothing
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("# a comment goes on nowhere\\\na=b", {"a": "b"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b\\ c=d", {"a=b c": "d"}),
        (r"a=\tb\u0041\"\.x", {"a": '\tbA".x'}),
    ],
)
def test_lines(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found
