"""What the demo shows, step by step, and what each step must find.

It ends well only if forgetting is complete, on time and never early, all of it done by tasks on
Spark.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lapse.demo.checks import OnDisk, Story, ends, look_at_files, read_ledgers, stories
from lapse.demo.flights import Flights, read_flights
from lapse.demo.house import House, Node, NotShown
from lapse.demo.traffic import (
    PARTITIONS,
    TOPIC,
    Sent,
    Writer,
    create_topic,
    offer_keyless,
    read_all,
)

T = TypeVar("T")

SERVICE_SECONDS_MAX = 90.0  # Spark's start on a busy machine
TRICKLE_RECORDS = 20
TRICKLE_SECONDS_MAX = 90  # how long the last records are held back for rounds to be seen
FORGOTTEN_SECONDS_MAX = 80  # from the last record to the proof
MAX_LAG_MS = 3000
RETENTION_MS = 4000
REMOVAL_LAG_MS = 4000
FILE_DELAY_MS = 1000
SLACK_MS = 10_000  # rolls, rounds and their queue on a busy machine
CLUSTER_SLACK_MS = 40_000  # a broker that was killed is back, and replicas have told each other
ROUNDS_WHILE_WRITING = 3
NOTHING_TO_DO = {"clean", "active-segment", "ratio"}  # what may hold a log that is done

TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "max.compaction.lag.ms": str(MAX_LAG_MS),
    "delete.retention.ms": str(RETENTION_MS),
    "lapse.tombstone.removal.max.lag.ms": str(REMOVAL_LAG_MS),
    "file.delete.delay.ms": str(FILE_DELAY_MS),
}
SETTINGS = ["log.cleaner.backoff.ms=300", "lapse.housekeeping.interval.ms=200"]

out = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


@dataclass(frozen=True)
class Wishes:
    """How it is to run.

    Attributes:
        crash: kill the broker in the middle of the writing, the service in the middle of a round.
        brokers: with several, each has a replica, and one is killed in any case.
        keep: stay up afterwards.
        seconds: how long the writing takes.
        service_seconds: how long the lifecycle service may take to start.
        master: Spark's, on which rounds run; None for `lapse up`'s own.
        up_options: handed to `lapse up`.
    """

    crash: bool = False
    brokers: int = 1
    keep: bool = False
    seconds: float = 30.0
    service_seconds: float = SERVICE_SECONDS_MAX
    master: str | None = None
    up_options: tuple[str, ...] = ()


def play(wishes: Wishes) -> bool:
    """All of it; whether everything was shown. Raises LapseError where a client gives up."""
    folder = Path(tempfile.mkdtemp(prefix="lapse-demo-"))
    out.print("reading a year of flights …")
    flights = read_flights()
    chosen = [f"lapse.lifecycle.master={wishes.master}"] if wishes.master else []
    settings = [word for setting in (*SETTINGS, *chosen) for word in ("-c", setting)]
    keep = wishes.keep
    house = None
    try:
        house = House(folder / "data", [*settings, *wishes.up_options], wishes.brokers)
        out.print(f"lapse is up: kafka={house.kafka} http={house.http}")
        out.print(f"watch it: http://{house.http.split(',')[0]}/")
        show(house, flights, wishes)
        if keep:
            stay(house, flights)
    except NotShown as e:
        out.print(f"[red]not shown:[/red] {escape(str(e))}")
        out.print(f"the log is {folder / 'data.log'}")
        keep = True
        return False
    finally:
        if house is not None:
            house.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return True


def show(house: House, flights: Flights, wishes: Wishes) -> None:
    """From the start of the service to the proof; raises NotShown."""
    waiting = time.monotonic()
    ready = house.wait_for_service(wishes.service_seconds)
    expect(ready, f"a lifecycle service within {wishes.service_seconds:g} s")
    started = time.monotonic()
    out.print(f"the lifecycle service is ready after {started - waiting:.1f} s")
    create_topic(house.kafka, TOPIC_CONFIG, len(house.nodes))
    sent, refused, bytes_in = write(house, flights, wishes)
    expect(not sent.failed, f"every record is acknowledged, yet: {sent.failed[:3]}")
    written = len(flights.keyed) + len(flights.retired)
    expect(sent.count == written, f"{written} acknowledgements, {sent.count} came")
    expect(
        refused == {"INVALID_RECORD": len(flights.keyless)},
        f"{len(flights.keyless)} keyless flights refused with INVALID_RECORD: {refused}",
    )
    out.print(f"{sent.count} records acknowledged; {len(flights.keyless)} keyless ones refused")
    left = wait_until_forgotten(house, flights, time.monotonic() + FORGOTTEN_SECONDS_MAX)
    told = prove(house, flights, sent)
    tell_rounds(house, sent)
    tell_sizes(sent, bytes_in, left)
    story = tell_story(told, slack_ms(house))
    for node in house.nodes:
        ask_plan_and_explain(node)
    ask_where_it_went(house, sent, story)
    out.print(f"[green]forgetting is complete[/green] after {time.monotonic() - started:.0f} s")


def expect(true: object, what: str) -> None:
    if not true:
        raise NotShown(what)


def write(house: House, flights: Flights, wishes: Wishes) -> tuple[Sent, dict[str, int], float]:
    """All traffic, with the accidents asked for; (acknowledged, refused, bytes taken in).

    The last records wait until the accidents are over and rounds went on beside the writing: a
    service that was killed takes as long to be back as the machine makes it.
    """
    writer = Writer(house.kafka)
    keyless = beside(lambda: offer_keyless(house.kafka, flights.keyless))
    is_hurt = wishes.crash or len(house.nodes) > 1
    hurt = beside(lambda: accidents(house, wishes)) if is_hurt else None
    keyed = flights.keyed
    total = len(keyed)
    held_back = total // 50
    with progress_bar("writing", total) as tick:
        writer.send_paced(
            keyed[:-held_back], total / wishes.seconds, lambda n: tick(n, len(house.rounds()))
        )
        until = time.monotonic() + TRICKLE_SECONDS_MAX
        for n in range(total - held_back, total, TRICKLE_RECORDS):
            writer.send_paced(keyed[n : n + TRICKLE_RECORDS], 1e9, lambda _: None)
            if time.monotonic() < until and not shown_beside_rounds(house, hurt):
                tick(n, len(house.rounds()))
                time.sleep(TRICKLE_SECONDS_MAX * TRICKLE_RECORDS / held_back)
        for key in flights.retired:
            writer.send_paced([(key, None)], 1e9, lambda _: None)
        writer.flush()
        tick(total, len(house.rounds()))
    refused = keyless.result()
    if hurt is not None:
        hurt.result()
    bytes_in = house.metric("kafka_server_brokertopicmetrics_bytesin_total")
    return writer.sent, refused, bytes_in


def beside(work: Callable[[], T]) -> Future[T]:
    """Do it in a thread, for which Ctrl-C does not wait."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as e:  # noqa: BLE001  (`result` raises it)
            done.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return done


def shown_beside_rounds(house: House, hurt: Future[None] | None) -> bool:
    over = hurt is None or hurt.done()
    return over and len(house.rounds()) >= ROUNDS_WHILE_WRITING


def accidents(house: House, wishes: Wishes) -> None:
    """The service dies in the middle of a round, the broker in the middle of the writing."""
    time.sleep(wishes.seconds / 3)
    if wishes.crash:
        pid = house.kill_service_in_a_round(TRICKLE_SECONDS_MAX / 2)
        out.print(f"[red]kill -9[/red] lifecycle service {pid}, in the middle of a round")
    time.sleep(wishes.seconds / 6)
    out.print(f"[red]kill -9[/red] broker {house.kill_broker()}, in the middle of the writing")


class progress_bar:  # noqa: N801  (reads as the function it stands for)
    """A bar on a terminal; elsewhere a line every few seconds."""

    def __init__(self, title: str, total: int) -> None:
        self._total = total
        self._title = title
        self._said = 0.0
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rounds]} rounds"), TimeElapsedColumn(),
        )  # fmt: skip
        self._bar = Progress(*columns, console=out, disable=not out.is_terminal)
        self._task = self._bar.add_task(title, total=total, rounds=0)

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        return self._tick

    def _tick(self, n: int, rounds: int) -> None:
        self._bar.update(self._task, completed=n, rounds=rounds)
        now = time.monotonic()
        if not out.is_terminal and (now - self._said > 3 or n == self._total):
            filled = 30 * n // self._total
            out.print(
                f"{self._title} \\[{'#' * filled}{'.' * (30 - filled)}] "
                f"{n}/{self._total}, {rounds} rounds committed"
            )
            self._said = now

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def wait_until_forgotten(house: House, flights: Flights, until: float) -> list[OnDisk]:
    """Look at the files until only what must stay is left, by broker; gives up at `until`."""
    out.print("waiting for the retired aircraft to be forgotten …")
    retired, wait_s = set(flights.retired), slack_ms(house) / 1000
    while True:
        disks = [look_at_files(node.data) for node in house.nodes]
        if all(len(d.live) == len(flights.expected) for d in disks) and not any(
            retired & disk.anywhere for disk in disks
        ):
            return disks
        expect(
            time.monotonic() < until + wait_s,
            "; ".join(
                f"{len(retired & disk.anywhere)} of {len(retired)} retired aircraft are still in "
                f"some file, and {len(disk.live)} records in the log, {len(flights.expected)} "
                "should be"
                for disk in disks
            ),
        )
        time.sleep(0.5)


def slack_ms(house: House) -> int:
    return SLACK_MS if len(house.nodes) == 1 else CLUSTER_SLACK_MS


def prove(house: House, flights: Flights, sent: Sent) -> list[Story]:
    """What a consumer sees is what the CSV says; nothing of the retired is in any file."""
    found = read_all(house.kafka)
    expect(
        len(found) == len(flights.expected) and dict(found) == flights.expected,
        f"a consumer should get the last flight of {len(flights.expected)} aircraft, "
        f"it got {len(found)} records of {len(dict(found))} keys",
    )
    out.print(
        f"a raw consumer gets exactly {len(found)} records, one a key, no tombstone, "
        "equal to the table computed from the CSV"
    )
    for node in house.nodes:
        disk = look_at_files(node.data)
        expect(not set(flights.retired) & disk.anywhere, "a retired aircraft is in some file again")
    of_all = "" if len(house.nodes) == 1 else f", at any of {len(house.nodes)} brokers,"
    out.print(
        f"no batch in any file{of_all} holds one of the {len(flights.retired)} retired aircraft"
    )
    told = ends([stories(flights.retired, sent, read_ledgers(n.data, sent)) for n in house.nodes])
    for story in told:
        expect(story.value_gone_ms > 0, f"the ledger does not know when {story.key!r} went")
        stayed_ms = story.tombstone_gone_ms - story.value_gone_ms
        expect(
            stayed_ms >= RETENTION_MS,
            f"the tombstone of {story.key!r} stayed {stayed_ms} ms after its value was gone, "
            f"delete.retention.ms is {RETENTION_MS}",
        )
    out.print(f"each tombstone stayed at least {RETENTION_MS} ms after its last value was gone")
    return told


def tell_rounds(house: House, sent: Sent) -> None:
    """The rounds, who did them, and that they went on while clients wrote."""
    rounds = house.rounds()
    table = Table("round", "log", "due", "Spark job", "task pid", "read", "written", "MB/s",
                  box=None, header_style="bold")  # fmt: skip
    for r in rounds:
        seconds = r.seconds.map + r.seconds.rewrite
        speed = r.bytes_read / 1e6 / seconds if seconds else 0
        table.add_row(
            r.round_id, r.log, ", ".join(r.due), ", ".join(map(str, r.job_ids)), str(r.task_pid),
            f"{r.bytes_read:,}", f"{r.bytes_written:,}", f"{speed:,.0f}",
        )  # fmt: skip
    out.print(table)
    early = [r for r in rounds if r.committed_ms < sent.last_ack_ms]
    expect(
        len(early) >= ROUNDS_WHILE_WRITING,
        f"{ROUNDS_WHILE_WRITING} rounds committed before the last acknowledgement, "
        f"{len(early)} were",
    )
    on_spark = all(r.engine == "spark" and r.job_ids and r.task_pid != r.driver_pid for r in rounds)
    expect(on_spark, "every round is a Spark job whose task ran outside the driver")
    out.print(f"{len(rounds)} rounds, {len(early)} of them while clients were writing")


def tell_sizes(sent: Sent, bytes_in: float, left: list[OnDisk]) -> None:
    out.print(f"before: {sent.count:,} records; after: {len(left[0].live):,}")
    sizes = ", ".join(f"{disk.log_bytes:,}" for disk in left)
    out.print(f"bytes taken in since the broker's start: {bytes_in:,.0f}; left: {sizes}")


def tell_story(told: list[Story], slack: int) -> Story:
    """One aircraft's end, from the ledgers."""
    story: Story = max(told, key=lambda s: s.values)
    value_by = story.tombstone_sent_ms + MAX_LAG_MS + slack
    tombstone_by = story.value_gone_ms + RETENTION_MS + REMOVAL_LAG_MS + slack
    out.print(f"the story of {story.key.decode()}: {story.values} flights, then a tombstone")
    out.print(
        f"  {clock(story.tombstone_sent_ms)} tombstone written\n"
        f"  {clock(story.value_gone_ms)} last value removed by round {story.value_round}; "
        f"deadline {clock(value_by)}: {verdict(story.value_gone_ms, value_by)}\n"
        f"  {clock(story.tombstone_gone_ms)} tombstone gone by round {story.tombstone_round}; "
        f"deadline {clock(tombstone_by)}: {verdict(story.tombstone_gone_ms, tombstone_by)}"
    )
    late = [
        s for s in told
        if s.value_gone_ms > s.tombstone_sent_ms + MAX_LAG_MS + slack
        or s.tombstone_gone_ms > s.value_gone_ms + RETENTION_MS + REMOVAL_LAG_MS + slack
    ]  # fmt: skip
    expect(not late, f"{len(late)} aircraft were forgotten too late, {late[:1]}")
    return story


def ask_plan_and_explain(node: Node) -> None:
    """What anybody may ask, beside the running broker: why nothing goes now."""
    for n in range(PARTITIONS):
        log = f"{TOPIC}-{n}"
        [plan] = node.ask("plan", "--partition", log, "--count")
        expect(
            plan.get("due") == [] and plan["would"] is None,
            f"lapse plan should have nothing to do in {log} any more: {plan}",
        )
        [told] = node.ask("explain", "--partition", log)
        expect(told.get("rule") in NOTHING_TO_DO, f"lapse explain says why {log} rests: {told}")
        out.print(f"lapse explain {log}: {told['text']} \\[{told['rule']}]")
        promised = {p["name"]: p["ms"] for p in told["promises"]}
        bound_ms = promised["a superseded value is gone"]
        expect(bound_ms is not None, f"lapse explain has a bound for values of {log}")
    out.print(f"lapse explain promises that a superseded value is gone within {bound_ms} ms")


def ask_where_it_went(house: House, sent: Sent, story: Story) -> None:
    """And where it went, and when: of the brokers whose rounds the story has."""
    *_, value, tombstone = sent.places[story.key]
    asked = ((value, "superseded"), (tombstone, "tombstone expired"))
    for (n, offset), reason in asked:
        where = ("--partition", f"{TOPIC}-{n}", "--offset", str(offset))
        answers = [node.ask("explain", *where)[0] for node in house.nodes]
        fates = [told.get("fate") or told for told in answers]
        gone = [f for f in fates if f.get("state") == "gone" and f["reason"] == reason]
        expect(bool(gone), f"lapse explain {' '.join(where)} should say {reason}: {fates}")
        out.print(f"lapse explain {' '.join(where)}: {gone[0]['text']}")
    rounds = {fate["round_id"] for fate in gone}
    expect(
        story.tombstone_round in rounds,
        f"{rounds} removed the tombstone, the ledger says {story.tombstone_round}",
    )


def clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def verdict(ms: int, deadline_ms: int) -> str:
    return "met" if ms <= deadline_ms else f"missed by {ms - deadline_ms} ms"


def stay(house: House, flights: Flights) -> None:
    lapse = Path(sys.executable).with_name("lapse")
    key = next(iter(flights.expected)).decode()
    out.print("\nstaying up (Ctrl-C ends it). Four things to try:")
    data = house.nodes[0].data
    out.print(f"  {lapse} plan {data}", soft_wrap=True)
    out.print(f"  {lapse} explain {TOPIC} --data {data}", soft_wrap=True)
    out.print(f"  {lapse} dump {data / (TOPIC + '-0')} | grep {key.encode().hex()}",
              soft_wrap=True)  # fmt: skip
    out.print(f"  {lapse} topic describe {TOPIC} --bootstrap-server {house.kafka}", soft_wrap=True)
    house.wait()
