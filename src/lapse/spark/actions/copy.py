"""`copy` over a session: a task claims the checkpoint, a query of the session's copies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.decoding import from_json
from lapse.base.fs import RealFs
from lapse.cli import copy as command
from lapse.spark.actions.commands import answer_of
from lapse.spark.actions.task import answered, parsed
from lapse.spark.export.copy import CopySpec, claim, copy_what_is_there
from lapse.spark.session.jobs import Jobs, Work


class CopyWish(msgspec.Struct, frozen=True):
    """What the action was told; the clients' settings have secrets among them."""

    words: tuple[str, ...]
    from_client: dict[str, str]
    to_client: dict[str, str]


def copy_topics(jobs: Jobs, wish: CopyWish) -> list[dict[str, Any]]:
    """How far each partition is copied then. Raises ConfigError, ActionFailed, CopyFailed."""
    spec, is_dry = _spec(wish), parsed(wish.words).dry_run
    _done(jobs, "looking at both ends of a copy", claimed, wish)
    if not is_dry:
        copy_what_is_there(jobs.spark, spec)
    rows: list[dict[str, Any]] = _done(jobs, "reading a checkpoint", copied, wish)
    return rows


def _done(jobs: Jobs, what: str, work: Work, wish: CopyWish) -> Any:
    return answer_of(jobs.one(what, work, msgspec.json.encode(wish)), object)


def _spec(wish: CopyWish) -> CopySpec:
    return command.spec_of(parsed(wish.words), wish.from_client, wish.to_client)


# --- in a task ------------------------------------------------------------------------------------


@answered
def claimed(encoded: bytes) -> None:
    """The checkpoint is this copy's; or it could be, after a dry run."""
    wish = from_json(encoded, CopyWish)
    asyncio.run(claim(_spec(wish), RealFs(), dry_run=parsed(wish.words).dry_run))


@answered
def copied(encoded: bytes) -> list[dict[str, Any]]:
    """What the checkpoint says."""
    checkpoint: Path = _spec(from_json(encoded, CopyWish)).checkpoint
    return command.copied(checkpoint)
