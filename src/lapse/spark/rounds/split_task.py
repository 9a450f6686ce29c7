"""What a Spark task does in a stage of a split plan: the requests of its bin, one after the other.

As `rounds.task` for small plans: requests come in and answers go out as JSON; records never leave
the task. Each attempt at a request has a folder of its own, named
`<job>-<stage>-<request>-a<attempt>-<random>`, and later stages read only those that answers name
which Spark has collected. So a task may run twice, be killed, or race with another attempt at
itself. An attempt that has an answer leaves a marker: the ones without when a job fails show
what its workers died over.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark import TaskContext

from lapse.base.clock import Clock, SystemClock
from lapse.base.decoding import from_json
from lapse.base.fs import Fs, RealFs
from lapse.lifecycle.round.split.requests import Answer, Stage, folder_of
from lapse.lifecycle.round.split.stages import decode_request, encode, run_request

ANSWERED = "answered"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SplitBin:
    """One task's requests, as they travel.

    Attributes:
        prefix: begins the attempts' names; no other job of the round has it.
        first: number of the first request within its job.
    """

    stage: Stage
    prefix: str
    first: int
    requests: tuple[msgspec.Raw, ...]


def encode_bin(stage: Stage, prefix: str, first: int, requests: Sequence[Any]) -> bytes:
    """A bin of neighbouring requests."""
    raw = tuple(msgspec.Raw(encode(request)) for request in requests)
    return msgspec.json.encode(SplitBin(stage, prefix, first, raw))


def run_split_bins(bins: Iterable[bytes]) -> Iterator[bytes]:
    """For `mapPartitions`: bins of requests in, an answer each out, in their order."""
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task only"
    yield from answers_to(bins, context.attemptNumber(), RealFs(), SystemClock())


def answers_to(bins: Iterable[bytes], attempt: int, fs: Fs, clock: Clock) -> Iterator[bytes]:
    """The same, for the task's so many-th attempt."""
    for encoded in bins:
        some = from_json(encoded, SplitBin)
        for number, data in enumerate(some.requests, some.first):
            name = f"{some.prefix}-{number}-a{attempt}-{secrets.token_hex(4)}"
            request = decode_request(some.stage, bytes(data))
            yield msgspec.json.encode(answer_one(some.stage, request, name, fs, clock))


def answer_one(stage: Stage, request: Any, attempt_id: str, fs: Fs, clock: Clock) -> Answer[Any]:
    """One request; whatever goes wrong comes back as its answer."""
    plan = request.plan
    try:
        answer = run_request(stage, request, attempt_id, fs, clock)
        if answer.done is not None:
            fs.write_file(folder_of(plan, attempt_id) / ANSWERED, b"")
    except Exception as e:  # a bug, or lack of memory, must not cost three more attempts
        logger.exception("%s of round %s over %s", stage.value, plan.round_id, plan.name)
        error = f"{plan.name}: {type(e).__name__}: {e}"
        return Answer(attempt_id, os.getpid(), 0.0, 0, None, error)
    return answer
