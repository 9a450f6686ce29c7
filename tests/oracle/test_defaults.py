"""Kafka's defaults, by its own definitions: the golden file is what they say today."""

from __future__ import annotations

import json

from tests.oracle import kafka
from tools.defaults import KAFKAS


def test_the_golden_file_is_what_kafkas_definitions_say(kafka_jars: str) -> None:
    assert kafka_jars
    told = kafka.run_tool("oracle.Defaults")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == json.loads(KAFKAS.read_text(encoding="utf-8"))
