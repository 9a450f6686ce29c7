"""What a streaming query has read is deleted at its broker (KIP-107), as a streaming option.

The source deletes what, by Spark's own word, no restart of the query reads again:

- `commit(end)`: batch N is in the checkpoint's `commits` by then. Spark makes this call while it
  plans batch N+1, so it comes a batch late, and never for a query's last batch.
- the first position that Spark gives after a restart comes from the checkpoint. So the last batch
  of a query that ended is deleted when the query is started again.
- with `deleteConsumedCheckpoint` the checkpoint itself is read whenever Spark requests more, which
  it does after the last batch too. Then the least offset of all the query's sources counts.

`consumed.decide` takes the other consumers into account: groups and other queries' checkpoints, of
which one with an unknown position blocks. No state is kept between two passes: if the process is
killed at any point, nothing is deleted that a named consumer has not read.

Deleting never ends a query. What blocks, or a broker that refuses, is logged once; the next batch
tries again, and a query without one every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.login import login
from lapse.lifecycle.decide.consumed import Consumer
from lapse.lifecycle.delete_consumed import ConsumedOptions, Pass, delete_consumed
from lapse.spark.scan.options import DeletionOptions, SourceOptions
from lapse.spark.source.progress import QueryProgress, checkpoint_consumer

_log = logging.getLogger(__name__)
_AGAIN_SECONDS = 10.0  # between two passes that are about the same


class Deletion:
    """Deletion for one running query; its stream reader passes on Spark's calls."""

    def __init__(self, options: SourceOptions, wish: DeletionOptions, clock: Clock) -> None:
        self._options = options
        self._wish = wish
        self._clock = clock
        self._query = QueryProgress("this query")
        self._is_known = False
        # When records were last deleted, and for which consumers; none: that failed, and batches go
        # on.
        self._last: tuple[float, tuple[Consumer, ...]] = (-_AGAIN_SECONDS, ())
        self._initial: Mapping[str, Any] | None = None
        self._said: frozenset[str] = frozenset()

    def begins(self, start: Mapping[str, Any]) -> None:
        """The query has no checkpoint yet: its first position is nothing that was read."""
        self._is_known, self._initial = True, start

    def goes_on(self, start: Mapping[str, Any]) -> None:
        """Spark requests the records after `start`."""
        if start == self._initial:
            return
        if not self._is_known or self._wish.checkpoint is not None:
            self._is_known = True
            self._query.commit(start)
        self._pass()

    def committed(self, end: Mapping[str, Any]) -> None:
        """Spark's `commit(end)`."""
        self._is_known = True
        self._query.commit(end)
        self._pass()

    def _pass(self) -> None:
        """Ask, decide, delete; unless that was done a moment ago of the same positions."""
        if not self._query.due():
            return
        own = () if self._wish.checkpoint is None else (self._wish.checkpoint,)
        checkpoints = map(checkpoint_consumer, (*own, *self._wish.checkpoints))
        others = (self._query.consumer(), *checkpoints)
        now = self._clock.monotonic()
        moment, consumers = self._last
        if (consumers == others or not consumers) and now - moment < _AGAIN_SECONDS:
            return
        self._last = (now, others)
        topics = tuple(sorted(self._query.consumer().topics()))
        try:
            done = asyncio.run(self._ask(ConsumedOptions(self._wish.groups, others, topics)))
        except LapseError as e:
            self._last = (self._clock.monotonic(), ())
            self._say(frozenset({str(e)}))
        else:
            self._take_note(done)

    async def _ask(self, wish: ConsumedOptions) -> Pass:
        who = login(self._options.client)
        timed = replace(wish, timeout_ms=self._wish.timeout_ms)
        async with Cluster(parse_bootstrap(self._options.bootstrap), who) as cluster:
            return await delete_consumed(cluster, timed)

    def _take_note(self, done: Pass) -> None:
        for outcome in done.outcomes:
            partition, ends = outcome.verdict.partition, outcome.verdict.ends
            result = outcome.result
            if result is not None and result.error is None:
                self._query.deleted(partition, result.low_watermark)
            elif ends is not None:
                self._query.deleted(partition, ends.low_watermark)
        due = self._query.due()
        self._say(
            frozenset(
                f"{outcome.verdict.partition}: {why}"
                for outcome in done.outcomes
                for why in outcome.blocked
                if outcome.verdict.partition in due
            )
        )

    def _say(self, blocked: frozenset[str]) -> None:
        """What keeps records that the query has read, once."""
        for why in sorted(blocked - self._said):
            _log.warning("deleteConsumed keeps records for now: %s", why)
        self._said = blocked
