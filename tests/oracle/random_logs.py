"""Logs that nobody has seen, and what is to be asked of both cleaners: drawn from a seed.

A `Scenario` is data: how the oracle writes the log (at random by its own `gen`, or batch by batch
by a script of ours), which passes clean it, and what is appended between them. `scenario(seed)`
always draws the same one, so that a failure can be run again from its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

T0 = 1_700_000_000_000
Options = dict[str, Any]


@dataclass(frozen=True)
class Writing:
    """What is appended: by the oracle at random, or by a script; options have dashes."""

    options: Mapping[str, Any]
    script: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Cleaning:
    """A pass so long after the last append, or after the pass before it.

    Attributes:
        after: what is appended before it, None for nothing.
        on_our_own: our cleaner goes on from what it left itself, summaries and all.
    """

    later_ms: int
    options: Mapping[str, Any]
    after: Writing | None = None
    on_our_own: bool = False


@dataclass(frozen=True)
class Scenario:
    """One log.

    Attributes:
        topic: options that every command is given.
        start_share: how much of the log is below its log start.
        mtime_step_ms: files are given times so far apart, from T0 on.
    """

    topic: Mapping[str, Any]
    writing: Writing
    cleanings: tuple[Cleaning, ...]
    start_share: float
    mtime_step_ms: int


def scenario(seed: int) -> Scenario:
    """What a seed stands for."""
    return _Draw(random.Random(seed)).scenario()


@dataclass
class _Producer:
    """What the next batch of a producer says."""

    epoch: int = 0
    sequence: int = 0
    is_open: bool = False

    def send(self, pid: int, records: int, txn: bool) -> Options:
        """The fields of a batch that make it this producer's."""
        self.is_open |= txn
        line = {"pid": pid, "epoch": self.epoch, "seq": self.sequence, "txn": self.is_open}
        self.sequence += records
        return line

    def end(self, pid: int, at_ms: int, aborted: bool, bump: bool) -> Options:
        """A marker; a bump is what coordinators do since KIP-890."""
        if bump:
            self.epoch, self.sequence = self.epoch + 1, 0
        self.is_open = False
        return {"op": "marker", "pid": pid, "epoch": self.epoch, "t": at_ms, "coord": 0,
                "type": "abort" if aborted else "commit"}  # fmt: skip


class _Draw:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.legacy = self.maybe(0.12)
        # Of transactions above all, and cleaned again and again: what is kept of one for whom.
        self.of_transactions = not self.legacy and self.maybe(0.4)
        self.scripted = self.legacy or self.maybe(0.25)
        self.producers = {pid: _Producer() for pid in range(7, 7 + self.one(1, 2, 4))}
        self.at_ms = T0

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def one(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def scenario(self) -> Scenario:
        topic = self.topic()
        codecs = self.one(
            "none", "none", "lz4", "none,lz4,gzip", "none,gzip", "zstd", "snappy", "mix"
        )
        keys = self.one(5, 30, 90, 300)
        writing = self.writing(topic, codecs, keys, first=True)
        exact = not any(c in codecs for c in ("zstd", "snappy", "mix")) and not self.legacy
        from_start = self.maybe(0.3)
        cleanings = []
        for n in range(self.one(3, 4, 5) if self.of_transactions else self.one(1, 2, 2, 3, 3)):
            more = self.writing(topic, codecs, keys, first=False, pid_base=5000 * n) if (
                n and not from_start and self.maybe(0.7)
            ) else None  # fmt: skip
            cleanings.append(self.cleaning(more, topic, from_start, bool(n) and exact))
        start_share = self.chance.uniform(0, 0.6) if self.maybe(0.2) else 0.0
        return Scenario(topic, writing, tuple(cleanings), start_share, self.one(0, 1000, 60_000))

    def topic(self) -> Options:
        topic: Options = {
            "segment-bytes": self.one(1500, 4096, 8192, 8192, 30_000, 1 << 20),
            "index-interval-bytes": self.one(1, 100, 512, 4096),
            "delete-retention-ms": self.one(0, 1000, 100_000, 100_000, 86_400_000),
        }
        if self.maybe(0.2):
            topic["segment-index-bytes"] = self.one(100, 240, 1000)
        if self.maybe(0.5 if self.of_transactions else 0.25) and not self.legacy:
            topic["timestamp-type"] = "append"
        if self.maybe(0.2):
            topic["cleanup-policy"] = "compact,delete"
        return topic

    def cleaning(
        self, after: Writing | None, topic: Options, from_start: bool, may_go_on: bool
    ) -> Cleaning:
        options: Options = {"dedupe-buffer-size": 24 * 2000}
        retention = topic["delete-retention-ms"]
        later = self.one(0, 1, 10_000, retention - 1, retention, retention, retention + 10_000)
        if from_start or self.maybe(0.15):
            options["first-dirty"] = 0
        if self.maybe(0.2):
            options["dedupe-buffer-size"] = 24 * self.one(3, 10, 40, 120)
            options["load-factor"] = self.one(0.5, 0.9, 0.9)
        if self.maybe(0.2):
            options["min-compaction-lag-ms"] = self.one(1, 1000, 5000, 60_000)
            options["min-cleanable-dirty-ratio"] = 0
            options["respect-eligibility"] = True
        if self.maybe(0.3):
            lag = options.get("min-compaction-lag-ms", 1) + self.one(0, 500, 10_000)
            options["max-compaction-lag-ms"] = lag
            options["min-cleanable-dirty-ratio"] = self.one(0, 0.5, 0.9, 1)
            options["respect-eligibility"] = True
        if self.maybe(0.3):
            options["producer-expiration-ms"] = self.one(1, 1000, 20_000)
        if self.maybe(0.2):
            options["io-buffer-size"] = self.one(1024, 8192)
        if self.maybe(0.1):
            options["segment-bytes"] = self.one(4096, 60_000)
        return Cleaning(max(later, 0), options, after, may_go_on and self.maybe(0.5))

    def writing(
        self, topic: Options, codecs: str, keys: int, *, first: bool, pid_base: int = 0
    ) -> Writing:
        if self.of_transactions and self.scripted:
            lines = self.transactions(codecs, min(keys, self.one(3, 40)), first=first)
            return Writing({"wipe": first, "start-time": self.at_ms}, lines)
        if self.scripted and first:
            lines = self.old_script(codecs, keys) if self.legacy else self.script(codecs, keys)
            return Writing({"wipe": True}, lines)
        chance = self.chance
        segment_bytes = topic["segment-bytes"]  # no batch is larger
        options: Options = {
            "wipe": first,
            "seed": chance.randrange(1 << 30),
            "records": chance.randint(60, 450) if first else chance.randint(20, 150),
            "keys": keys,
            "dist": self.one("uniform", "uniform", "zipf", "seq"),
            "codec": codecs,
            "batch-records": min(self.one(1, 3, 10, 10, 40), segment_bytes // 400),
            "value-size": self.one(0, 5, 50),
            "value-size-max": self.one(60, 300),
            "value-kind": self.one("text", "random"),
            "time-step": self.one(1, 10, 200),
            "pid-base": pid_base,
            "start-time": T0 + (0 if first else self.one(20_000, 100_000)),
        }
        for probability, name, values in (
            (0.6, "tombstones", (0.05, 0.2, 0.5)), (0.2, "keyless", (0.02, 0.2)),
            (0.3, "headers", (0.1, 0.5)), (0.25, "gap", (0.05, 0.3)),
            (0.5, "idempotent", (0.2, 0.6)), (0.5, "txn", (0.2, 0.5, 0.8)),
            (0.5, "abort", (0, 0.4, 1)), (0.3, "epoch-bump", (0.3, 0.8)),
            (0.3, "ts-jitter", (50, 5000, 86_400_000)), (0.2, "leader-epoch-bump", (0.05, 0.3)),
            (0.2, "roll-every-batches", (1, 5)), (0.3, "txn-batches", (1, 2, 8)),
            (0.3, "producers", (1, 12)), (0.3, "txn-producers", (1, 8)),
            (0.15, "roll-end", (False,)), (0.3, "open-txn", (True,)), (0.1, "leader", (False,)),
        ):  # fmt: skip
            if self.maybe(probability):
                options[name] = chance.choice(values)
        if self.of_transactions:
            options |= {
                "txn": self.one(0.5, 0.8),
                "abort": self.one(0.3, 0.7, 1),
                "epoch-bump": self.one(0, 0.3, 0.8),
                "txn-batches": self.one(1, 2, 4),
            }
        return Writing(options)

    # --- transactions ----------------------------------------------------------------------------

    def transactions(self, codecs: str, keys: int, *, first: bool) -> list[Options]:
        """Producers that go on after each pass, so that what was the last of one is so no more."""
        chance = self.chance
        names = [c for c in codecs.split(",") if c != "mix"] or ["none", "gzip", "lz4", "snappy"]
        aborts, bumps, rolls = self.one(0.3, 0.7, 1), self.one(0, 0.3, 1), self.one(0.02, 0.1, 0.3)
        self.at_ms += 0 if first else self.one(0, 20_000, 100_000)
        lines: list[Options] = []
        for _ in range(chance.randint(8, 60) if first else chance.randint(1, 30)):
            self.at_ms += chance.randint(0, 300)
            lines.append({"op": "now", "t": self.at_ms})
            pid = self.one(*self.producers)
            producer = self.producers[pid]
            if self.maybe(rolls):
                lines.append({"op": "roll"})
            if self.maybe(0.4 if producer.is_open else 0.1):
                lines.append(producer.end(pid, self.at_ms, self.maybe(aborts), self.maybe(bumps)))
                continue
            records = [self.record(keys, self.at_ms) for _ in range(self.one(1, 1, 2, 5))]
            line: Options = {"op": "batch", "records": records, "codec": self.one(*names)}
            if self.maybe(0.8):
                line |= producer.send(pid, len(records), self.maybe(0.8))
            lines.append(line)
        if self.maybe(0.8):
            for pid, producer in self.producers.items():
                if producer.is_open:
                    lines.append(producer.end(pid, self.at_ms, self.maybe(aborts), False))
        if self.maybe(0.9):
            lines.append({"op": "roll"})
        return [*lines, {"op": "batch", "records": [self.record(keys, self.at_ms)]}]

    # --- scripts ---------------------------------------------------------------------------------

    def script(self, codecs: str, keys: int) -> list[Options]:
        """What `gen` never writes: horizons, odd times, empty keys, markers of nothing."""
        chance, lines = self.chance, []
        names = [c for c in codecs.split(",") if c != "mix"] or ["none", "gzip", "lz4", "snappy"]
        producers = {pid: [0, 0, False] for pid in (7, 8, 9)}  # epoch, next sequence, open
        at = T0
        for n in range(chance.randint(20, 90)):
            at += chance.randint(0, 300)
            kind = chance.choices(
                ("plain", "producer", "marker", "horizon", "roll"), (8, 6, 4, 2, 2)
            )[0]
            if kind == "roll":
                lines.append({"op": "roll"})
                continue
            pid = self.one(*producers)
            state = producers[pid]
            if kind == "marker":
                if self.maybe(0.3):
                    state[:2] = state[0] + 1, 0
                state[2] = False
                lines.append(
                    {"op": "marker", "pid": pid, "epoch": state[0], "t": at, "coord": n // 20,
                     "type": self.one("commit", "abort")}
                )  # fmt: skip
                continue
            records = [self.record(keys, at) for _ in range(self.one(1, 2, 3, 8))]
            line: Options = {"op": "batch", "records": records, "codec": self.one(*names)}
            if kind == "producer":
                txn = state[2] or self.maybe(0.7)
                line |= {"pid": pid, "epoch": state[0], "seq": state[1], "txn": txn}
                state[1:] = state[1] + len(records), txn
            elif kind == "horizon":
                line |= {"follower": True, "deleteHorizon": at + self.one(-5000, 0, 5000, 10**6)}
            lines.append(line)
        return [*lines, {"op": "roll"}, {"op": "batch", "records": [self.record(keys, at)]}]

    def record(self, keys: int, at: int, *, magic: int = 2) -> Options:
        chance = self.chance
        record: Options = {"k": f"k{chance.randrange(min(keys, 40))}"}
        if self.maybe(0.03):
            record["k"] = ""
        if self.maybe(0.75):
            record["v"] = self.one("", "v", "value" * chance.randint(1, 40))
        record["t"] = -1 if magic == 0 or self.maybe(0.05) else at + chance.randint(-3000, 3000)
        if magic == 2 and self.maybe(0.15):
            record["h"] = [["h", self.one(None, "x")]]
        return record

    def old_script(self, codecs: str, keys: int) -> list[Options]:
        """Formats v0, v1 and v2 in turn, as a log that was upgraded has them, gaps included."""
        chance, lines, offset, at = self.chance, [], 0, T0
        names = [c for c in codecs.split(",") if c not in ("mix", "zstd")] or [
            "none",
            "gzip",
            "lz4",
        ]
        count = chance.randint(12, 60)
        for n in range(count):
            at += chance.randint(0, 300)
            magic = self.one(0, 1, 1, 2) if self.maybe(0.2) else min(3 * n // count, 2)
            if self.maybe(0.15):
                lines.append({"op": "roll"})
            if self.maybe(0.1):
                offset += chance.randint(1, 30)
            records = [self.record(keys, at, magic=magic) for _ in range(self.one(1, 2, 3, 8))]
            line: Options = {"op": "batch", "offset": offset, "magic": magic, "records": records,
                             "codec": self.one(*names)}  # fmt: skip
            if magic and self.maybe(0.1):
                line |= {"tsType": "append", "appendTime": at}
                for record in records:
                    record["t"] = max(record["t"], 0)
            lines.append(line)
            offset += len(records)
        return [*lines, {"op": "roll"}, {"op": "batch", "records": [self.record(keys, at)]}]
