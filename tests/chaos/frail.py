"""A topic whose files are damaged where nothing makes them again: it loses, but not in silence.

Nothing is ever to go from it. What is served must be what was acknowledged;
where something is not served, somebody must be told: the consumer by an error, or an operator by
`/health` or a warning in the log that names the partition.
"""

from __future__ import annotations

import random
import re
import shutil
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lapse.testing.history.events import digest
from tests.chaos.topics import PARTITIONS
from tests.chaos.writers import ACK_SECONDS_MAX, COMMON

TOPIC = "frail"
PER_SECOND = 30
READ_SECONDS_MAX = 60
NAMED = re.compile(rf"\b{TOPIC}-\d+\b")
LOUD = re.compile(r" (WARNING|ERROR|CRITICAL) ")


@dataclass(eq=False)  # threads are kept in sets
class Frail(threading.Thread):
    """Writes to it, and reads it at the end."""

    bootstrap: str
    acknowledged: dict[tuple[int, int], str | None] = field(default_factory=dict)
    given_twice: set[int] = field(default_factory=set)
    crash: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(name="frail", daemon=True)
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            self._write()
        except BaseException as e:  # noqa: BLE001 - the run tells of it
            self.crash = e

    def _write(self) -> None:
        chance, count = random.Random(1), 0
        while not self.ending.is_set():
            producer = Producer(
                {
                    **COMMON, "bootstrap.servers": self.bootstrap, "enable.idempotence": True,
                    "message.timeout.ms": 5000,
                }
            )  # fmt: skip
            spent = threading.Event()
            while not (self.ending.is_set() or spent.is_set()):
                value = chance.randbytes(200)
                said = digest(value)

                def delivered(
                    error: KafkaError | None, message: Message, said: str | None = said
                ) -> None:
                    if error is None:
                        self.acknowledge(message.partition(), message.offset(), said)

                try:
                    producer.produce(
                        TOPIC, value, f"{count}".encode(), count % PARTITIONS,
                        on_delivery=delivered,
                    )  # fmt: skip
                    producer.poll(0)
                except (BufferError, KafkaException):  # its log is offline, or it came to an end
                    spent.set()
                count += 1
                self.ending.wait(1 / PER_SECOND)
            try:
                producer.flush(ACK_SECONDS_MAX)
            except KafkaException:
                continue

    def acknowledge(self, partition: int, offset: int, said: str | None) -> None:
        """An offset that another record has had is a log that began anew."""
        if self.acknowledged.setdefault((partition, offset), said) != said:
            self.given_twice.add(partition)

    def judge(self, health: str, log: str) -> list[str]:
        """What is wrong: other records than were acknowledged, or some that are gone in silence."""
        findings = []
        loud = set(NAMED.findall(health))
        loud |= {n for line in log.splitlines() if LOUD.search(line) for n in NAMED.findall(line)}
        for n in range(PARTITIONS):
            name = f"{TOPIC}-{n}"
            served, told = self._read(n)
            expected = {at: said for (p, at), said in self.acknowledged.items() if p == n}
            if n in self.given_twice:
                if name not in loud:
                    findings.append(f"silent: {name} began anew, and nobody says so")
                continue
            wrong = [at for at, said in served.items() if expected.get(at, said) != said]
            missing = expected.keys() - served.keys()
            findings += [f"altered: {name}@{at} is served with other bytes" for at in wrong[:3]]
            if missing and not (told or name in loud):
                findings.append(
                    f"silent: {len(missing)} records of {name}, from {min(missing)} on, are gone, "
                    "and neither a consumer nor /health nor the log says so"
                )
        return findings

    def _read(self, partition: int) -> tuple[dict[int, str | None], str]:
        """What a consumer is served, by offset, and the error it got."""
        consumer = Consumer(
            {
                **COMMON, "bootstrap.servers": self.bootstrap, "group.id": "none",
                "enable.partition.eof": True, "enable.auto.commit": False, "check.crcs": True,
                "auto.offset.reset": "error",
            }
        )  # fmt: skip
        served: dict[int, str | None] = {}
        try:
            place = TopicPartition(TOPIC, partition)
            place.offset, _ = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            for _ in range(READ_SECONDS_MAX):
                for message in consumer.consume(1000, 1.0):
                    error = message.error()
                    if error is None:
                        served[message.offset()] = digest(message.value())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return served, ""
                    else:
                        return served, error.name()
        except KafkaException as e:
            return served, str(e.args[0].name())
        finally:
            consumer.close()
        return served, ""  # it waits for what never comes, and nobody says so


def damage(data: Path, how: str, seed: int) -> str:
    """Hurt one of its partitions, while no broker has it; which one, "" if there is nothing yet."""
    chance = random.Random(seed)
    folder = data / f"{TOPIC}-{chance.randrange(PARTITIONS)}"
    sealed = [path for path in sorted(folder.glob("*.log"))[:-1] if path.stat().st_size]
    if len(sealed) < 2:
        return ""
    victim = chance.choice(sealed[:-1])
    size = victim.stat().st_size
    at = chance.randrange(size)
    if how == "remove-folder":
        shutil.rmtree(folder)
    elif how == "remove-segment":
        victim.unlink()
    elif how == "cut":
        with victim.open("r+b") as file:
            file.truncate(at)
    else:
        with victim.open("r+b") as file:
            file.seek(at)
            file.write(bytes(100) if how == "zeros" else chance.randbytes(100))
            file.truncate(size)
    return folder.name


def is_well(status: int, body: str, damaged: Collection[str]) -> bool:
    """Whether `/health` says that all is well, but for partitions that were damaged."""
    if status == 200:
        return True
    lines = body.splitlines()[1:]
    named = [set(re.findall(r"\b[a-z_]+-\d+\b", line)) for line in lines]
    return status == 503 and bool(lines) and all(n and n <= set(damaged) for n in named)
