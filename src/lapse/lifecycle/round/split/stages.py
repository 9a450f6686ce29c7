"""Carries out any request of a split plan in encoded form: bytes in, bytes out.

A driver sends `encode`d requests to its workers and reads their answers with `decode_answer`; to
run a request in this process, call `run_request`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from lapse.base.clock import Clock
from lapse.base.decoding import from_json
from lapse.base.fs import Fs
from lapse.lifecycle.round.split.judge import judge_segment
from lapse.lifecycle.round.split.merge import merge
from lapse.lifecycle.round.split.regroup import rewrite_group
from lapse.lifecycle.round.split.requests import (
    Answer,
    JudgedSegment,
    JudgeRequest,
    Merged,
    MergeRequest,
    RewriteRequest,
    Rewritten,
    Scanned,
    ScanRequest,
    Stage,
)
from lapse.lifecycle.round.split.scan import scan
from lapse.lifecycle.round.split.task import Attempt, attempt


@dataclass(frozen=True, slots=True)
class _Work:
    request: type[Any]
    answer: Any
    do: Callable[[Any, Attempt], Any]


_WORK: Mapping[Stage, _Work] = {
    Stage.SCAN: _Work(ScanRequest, Answer[Scanned], scan),
    Stage.MERGE: _Work(MergeRequest, Answer[Merged], merge),
    Stage.JUDGE: _Work(JudgeRequest, Answer[JudgedSegment], judge_segment),
    Stage.REWRITE: _Work(RewriteRequest, Answer[Rewritten], rewrite_group),
}


def run_request(stage: Stage, request: Any, attempt_id: str, fs: Fs, clock: Clock) -> Answer[Any]:
    """One attempt at one request."""
    do = _WORK[stage].do
    return attempt(request.plan, attempt_id, fs, clock, lambda this: do(request, this))


def encode(message: Any) -> bytes:
    """A request or an answer in encoded form."""
    return msgspec.json.encode(message)


def decode_request(stage: Stage, data: bytes) -> Any:
    """The request from its encoded form."""
    return from_json(data, _WORK[stage].request)


def decode_answer(stage: Stage, data: bytes) -> Answer[Any]:
    """The answer from its encoded form."""
    answer: Answer[Any] = from_json(data, _WORK[stage].answer)
    return answer
