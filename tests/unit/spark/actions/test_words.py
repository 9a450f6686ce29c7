"""Keyword arguments as the words of a command line."""

from __future__ import annotations

import pytest

from lapse.spark.actions.words import words_of


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ()),
        ({"first_dirty": None, "force": False, "partition": ()}, ()),
        ({"first_dirty": 0}, ("--first-dirty=0",)),
        ({"force": True}, ("--force",)),
        ({"groups": "a,b"}, ("--groups=a,b",)),
        ({"key": ["-x", "y z"]}, ("--key=-x", "--key=y z")),
        ({"-c": {"a.b": 1, "c": True, "d": "x=y"}}, ("-ca.b=1", "-cc=true", "-cd=x=y")),
    ],
)
def test_an_option_is_a_word(options: dict[str, object], words: tuple[str, ...]) -> None:
    assert words_of("clean", None, options) == ("clean", *words)
    assert words_of("clean", "-odd", options) == ("clean", *words, "--", "-odd")
