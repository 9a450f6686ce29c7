"""KIP-87: what a flagged record is to its readers never changes, whatever is switched around it.

A topic's life with settings of its own, of the broker and of its properties file, restarts and
rounds: a stock consumer sees each record as it saw it first, for as long as it is there, and of
each key the last word is there.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.cli.main import main
from lapse.client.admin import Admin
from lapse.client.settings import BROKER, TOPIC, ConfigChange, Operation, Resource
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from tests.conftest import scaled_count
from tests.support.broker.running import connect, create, fetch, produce, running_node

STEPS = 40
T = TopicPartition("t", 0)
POLICIES = ("compact", "delete", "compact,delete")
ENABLE, POLICY = "lapse.tombstone.values.enable", "cleanup.policy"
Shown = tuple[bytes | None, bytes | None]
ALWAYS = {
    "delete_retention_ms": "1000000000", "retention_ms": "-1", "internal_segment_bytes": "200",
    "min_cleanable_dirty_ratio": "0.01",
}  # fmt: skip


class Life:
    """One topic: what was sent, and how a stock consumer is to see it.

    Attributes:
        cleaned_to: below this no key is there twice: a round saw to it.
        removed: how many records rounds have taken out.
    """

    def __init__(self, data: Path, chance: random.Random) -> None:
        self.data, self.chance = data, chance
        self.file: dict[str, str] = {}
        self.seen: dict[int, Shown] = {}
        self.flagged: set[int] = set()
        self.refused = self.allowed = self.removed = self.cleaned_to = 0
        self.compacts = False

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        async with running_node(self.data, self.file) as node:
            yield node

    async def produce(self, node: Node) -> None:
        config = node.services.partitions.get(T).config
        records = [
            NewRecord(b"k%d" % self.chance.randrange(6), b"v%d" % len(self.seen), 1000,
                      tombstone=self.chance.random() < 0.3)
            for _ in range(self.chance.randint(1, 3))
        ]  # fmt: skip
        codec = self.chance.choice([Codec.NONE, Codec.LZ4])
        async with await connect(node) as connection:
            (answer,) = await produce(
                connection, "t", (0, build_batch(records, BatchSpec(codec=codec)))
            )
        assert answer.error_code == 0
        for n, record in enumerate(records):
            dead = record.tombstone and config.compacts
            offset = answer.base_offset + n
            self.seen[offset] = record.key, None if dead else record.value
            if record.tombstone and (config.tombstone_values_enable or not config.compacts):
                self.flagged.add(offset)

    async def switch(self, node: Node) -> None:
        name, value = self.chance.choice([(POLICY, p) for p in POLICIES] + [(ENABLE, "true")] * 2
                                         + [(ENABLE, "false"), (POLICY, None)])  # fmt: skip
        resource = Resource(TOPIC, "t")
        if self.chance.random() < 0.4:
            resource = Resource(BROKER, self.chance.choice(["", "0"]))
            name = "log.cleanup.policy" if name == POLICY else name
        await self.change(node, resource, name, value)

    async def change(self, node: Node, resource: Resource, name: str, value: str | None) -> None:
        log = node.services.partitions.get(T)
        before, held = log.config, log.state.holds_valued_tombstones()
        how = Operation.SET if value is not None else Operation.DELETE
        change = {resource: [ConfigChange(name, value, how)]}
        async with await connect(node) as connection:
            error = (await Admin(connection).incremental_alter_configs(change))[resource]
        if error is None:
            self.allowed += 1
            assert not held or log.config.compacts == before.compacts
        else:
            self.refused += 1
            assert (error.code, held) == (ErrorCode.INVALID_CONFIG, True)
            assert log.config == before

    async def begin(self, node: Node, *, compacts: bool) -> None:
        """Enough for a round to remove some, or a flag that another policy would give effect."""
        await self.change(node, Resource(TOPIC, "t"), ENABLE, "true")
        assert self.allowed == 1
        while len(self.seen) < 20 or not self.flagged:
            await self.produce(node)
        await self.check(node)
        assert self.compacts == compacts
        if not compacts:
            await self.change(node, Resource(TOPIC, "t"), POLICY, "compact")
            assert self.refused == 1

    def edit_file(self) -> None:
        self.file = {
            name: value
            for name, value in (
                ("log.cleanup.policy", self.chance.choice([*POLICIES, ""])),
                (ENABLE, self.chance.choice(["true", "false"])),
            )
            if value
        }

    def clean(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Where the policy compacts, all but the active segment is cleaned."""
        asked = ["clean", str(self.data), "--force", "--engine", "inline", "--json"]
        capsys.readouterr()
        code = main([*asked, *self.chance.choice([[], ["--kafka-exact"]])])
        (line,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert code == 0, line
        self.removed += line["records_read"] - line["records_written"]
        if self.compacts:
            bases = [int(path.stem) for path in (self.data / str(T)).glob("*.log")]
            self.cleaned_to = line["first_dirty_after"]
            assert self.cleaned_to == max(bases), line

    async def check(self, node: Node) -> None:
        """As somebody who knows no flag."""
        shown: dict[int, Shown] = {}
        at, end = 0, node.services.partitions.get(T).log_end_offset
        async with await connect(node) as connection:
            while at < end:
                (got,) = await fetch(connection, "t", (0, at))
                data = bytes(got.records or b"")
                rows = scan_batches(data, "t")
                assert len(rows)
                for row in rows:
                    for r in records_of(data, row, "t"):
                        shown[r.offset] = r.key, r.value
                at = int(rows["last_offset"][-1]) + 1
        assert shown.items() <= self.seen.items()
        below = [key for offset, (key, _) in shown.items() if offset < self.cleaned_to]
        assert len(below) == len(set(below))
        self.compacts = node.services.partitions.get(T).config.compacts
        last = {key: offset for offset, (key, _) in sorted(self.seen.items())}
        assert set(last.values()) <= shown.keys()


@pytest.mark.parametrize("number", range(scaled_count(100)))
async def test_a_record_stays_what_it_is(
    number: int, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    life = Life(tmp_path, random.Random(seed))
    life.edit_file()
    async with life.node() as node:
        # Its first life is one of rounds, or of flags that only data has.
        await create(node, "t", cleanup_policy=POLICIES[number % 2], **ALWAYS)
        await life.begin(node, compacts=number % 2 == 0)
    if number % 2 == 0:
        life.clean(capsys)
        assert life.removed
    for _ in range(STEPS // 5):
        async with life.node() as node:
            await life.check(node)
            for _ in range(5):
                await life.chance.choice([life.produce, life.produce, life.switch])(node)
                await life.check(node)
        if life.chance.random() < 0.5:
            life.edit_file()
        life.clean(capsys)
