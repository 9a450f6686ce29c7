"""What goes into a task and comes out of it, and who may not run it."""

from __future__ import annotations

from importlib.metadata import version

import pyarrow as pa

from lapse.spark.session.jobs import _answers

REQUESTS = [b"a", b"b", b"c"]


def numbers(*some: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(some, pa.int64())})


def test_a_task_answers_its_numbers() -> None:
    batches = iter([numbers(2), numbers(0, 1)])
    rows = [
        row
        for batch in _answers(version("lapse"), bytes.upper, REQUESTS, batches)
        for row in batch.to_pylist()
    ]
    assert [(row["number"], row["answer"]) for row in rows] == [(2, b"C"), (0, b"A"), (1, b"B")]


def test_another_version_does_nothing() -> None:
    done: list[bytes] = []

    def work(request: bytes) -> bytes:
        done.append(request)
        return request

    [batch] = _answers("0.0.0", work, REQUESTS, iter([numbers(1)]))
    [row] = batch.to_pylist()
    assert (row["version"], row["answer"], done) == (version("lapse"), b"", [])
