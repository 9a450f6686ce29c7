"""Every setting has Kafka's default, or a reason; and each kind of slip is found."""

from __future__ import annotations

from dataclasses import replace

from tools.defaults import Departure, complaints, departures, read_kafkas, read_reasons

KAFKAS, REASONS = read_kafkas(), read_reasons()


def test_every_default_is_kafkas_or_has_a_reason() -> None:
    assert list(complaints(KAFKAS, REASONS)) == []


def test_what_clients_feel_most_is_as_in_kafka() -> None:
    told = {one.name for one in departures(KAFKAS, REASONS)}
    felt = {"auto.create.topics.enable", "num.partitions", "message.max.bytes", "fetch.max.bytes"}
    assert felt <= KAFKAS.broker.keys()
    assert not felt & told


def test_each_kind_of_slip_is_found() -> None:
    broker = {**KAFKAS.broker, "num.partitions": "4", "log.retention.hours": "1", "new.one": "x"}
    del broker["queued.max.requests"]
    topic = {**KAFKAS.topic, "retention.ms": "5", "other.one": None}
    wrong = replace(
        REASONS,
        departures={**REASONS.departures, "fetch.max.bytes": "why not"},
        own={"num.partitions": "nobody's"},
    )
    found = set(complaints(replace(KAFKAS, broker=broker, topic=topic), wrong))
    assert found == {
        "num.partitions is '1', in Kafka '4', and no reason is given",
        "retention.ms is '604800000', in Kafka '5', and no reason is given",
        "fetch.max.bytes departs no more",
        "log.retention.hours is 1 in Kafka, retention.ms is '604800000' here",
        "num.partitions is Kafka's after all",
        "new.one, a broker setting of Kafka's, is not here, and nothing is said of it",
        "other.one, a topic setting of Kafka's, is not here, and nothing is said of it",
        "queued.max.requests: there is no such broker setting that is not here",
        *(f"{name} is not Kafka's, and nothing says whose" for name in REASONS.own),
    }


def test_a_departure_is_told_with_both_defaults() -> None:
    one = next(one for one in departures(KAFKAS, REASONS) if one.name == "listeners")
    assert (one.kafkas, one.ours) == ("PLAINTEXT://:9092", "PLAINTEXT://127.0.0.1:9092")
    assert one == Departure(one.name, one.kafkas, one.ours, REASONS.departures["listeners"])
