"""The peer itself: a real broker starts on free ports and real tools write and read."""

from __future__ import annotations

from tests.oracle import kafka


def test_real_kafka_takes_and_gives_records(real_kafka: kafka.RealKafka) -> None:
    server = ["--bootstrap-server", real_kafka.bootstrap]
    lines = "a=1\nb=2\n"
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=="]
    produced = kafka.run_tool(
        "ConsoleProducer", [*server, "--topic", "t", "--sync", *keyed], stdin=lines
    )
    assert produced.returncode == 0, produced.stderr
    until = ["--partition", "0", "--offset", "earliest", "--max-messages", "2"]
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "key.separator=="]
    consumed = kafka.run_tool("consumer.ConsoleConsumer", [*server, "--topic", "t", *until, *shown])
    assert consumed.stdout == lines, consumed.stderr
    assert (real_kafka.log_dir / "t-0" / f"{0:020}.log").stat().st_size > 0
