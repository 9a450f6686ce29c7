"""Java's properties format, by the rules of `java.util.Properties`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.base.properties import parse_properties, properties_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a = b c \n", {"a": "b c"}),
        ("a=b\\  \nc=d\\\\ \ne=\\ ", {"a": "b ", "c": "d\\", "e": " "}),  # an escaped blank stays
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


def test_two_escapes_may_be_one_character() -> None:
    assert parse_properties(r"a=\uD83D\uDE00")["a"] == "\N{GRINNING FACE}"


@given(st.dictionaries(st.text(min_size=1), st.text()))
@example({"a b=c:#!\\": "  two  blanks  \\", "#": "\n\r\t\f#!", "é": "\N{GRINNING FACE}"})
def test_what_is_written_is_what_is_read(properties: dict[str, str]) -> None:
    text = properties_text(properties).reveal()
    assert parse_properties(text) == properties
    assert text.isascii()
    assert text.count("\n") == len(properties)


def test_a_comment_comes_first_and_is_no_setting() -> None:
    text = properties_text({"a": "pass\\nword"}, "one line").reveal()
    assert text == "# one line\na=pass\\\\nword\n"
    assert parse_properties(text) == {"a": "pass\\nword"}
