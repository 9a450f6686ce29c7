"""A new API is a file and a line: the table has every file, and each states its permissions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lapse.broker import api
from lapse.broker.api.table import SERVED
from lapse.wire.declaration import message_spec

FILES = {
    path.stem: path
    for path in Path(api.__file__ or "").parent.glob("*.py")
    if path.stem not in {"__init__", "table"}
}


def file_of(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_the_table_has_every_file() -> None:
    assert sorted(FILES) == sorted(file_of(endpoint.api.name) for endpoint in SERVED.values())


@pytest.mark.parametrize("key", SERVED)
def test_a_file_says_key_and_who_may(key: int) -> None:
    """The docstring does; and the endpoint's request and response are messages of one API."""
    endpoint = SERVED[key]
    docstring = ast.get_docstring(ast.parse(FILES[file_of(endpoint.api.name)].read_text())) or ""
    assert docstring.startswith(f"{endpoint.api.name} (key {key}): ")
    assert re.search(r"^Needs [A-Zn]", docstring, re.MULTILINE)
    assert message_spec(endpoint.request).api is endpoint.api
    assert message_spec(endpoint.response).api is endpoint.api
