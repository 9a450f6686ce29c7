"""What is asked of Spark before it starts."""

from __future__ import annotations

import pytest

from lapse.spark.session import session
from lapse.spark.session.java import JavaNotFound
from lapse.spark.session.session import SessionOptions, open_session, with_retries


@pytest.mark.parametrize(
    ("master", "asked"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local", "local[1,4]"),
        ("local[*,9]", "local[*,9]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_tasks_are_retried(master: str, asked: str) -> None:
    assert with_retries(master) == asked


def test_without_java_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise JavaNotFound("no Java 17 or newer: install one")

    monkeypatch.setattr(session, "find_java", none)
    with pytest.raises(JavaNotFound, match="install one"):
        open_session(SessionOptions())
