"""Keyword arguments as the words of a command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.actions.words import path_in, paths_in, words_of


class Classic:
    _jsparkSession = None  # noqa: N815  (as PySpark has it)


CLASSIC: Any = Classic()
CONNECTED: Any = object()


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


def test_a_path_is_as_tasks_see_it() -> None:
    assert path_in(CLASSIC, "path", None) is None
    assert path_in(CLASSIC, "path", "data") == f"{os.getcwd()}/data"
    assert path_in(CONNECTED, "path", Path("/data")) == "/data"
    assert paths_in(CLASSIC, "replica", "/a") == paths_in(CLASSIC, "replica", ["/a"]) == ["/a"]
    assert paths_in(CONNECTED, "replica", ()) == []
    with pytest.raises(ConfigError, match="replica=b: allowed is an absolute path"):
        paths_in(CONNECTED, "replica", ["/a", "b"])
