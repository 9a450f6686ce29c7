"""Files of settings between Java and us: each reads what the other wrote, to the last blank."""

from __future__ import annotations

import json
import random
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.base.properties import parse_properties, properties_text
from tests.oracle import kafka

_PARTS = (
    *(
        "\\",
        "\\n",
        "\\u0041",
        "\\\\",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\f",
        "=",
        ":",
        "#",
        "!",
        '"',
        "'",
    ),
    *("a", "word", "é", "\N{EURO SIGN}", "\N{GRINNING FACE}", "\x00", "\x7f", ";", "$"),
)


def test_java_and_we_read_what_the_other_wrote(kafka_jars: str, tmp_path: Path, seed: int) -> None:
    assert kafka_jars
    drawn = random.Random(seed)

    def text(least: int) -> str:
        return "".join(drawn.choices(_PARTS, k=drawn.randint(least, 8)))

    settings = {f"{text(0)}{n}{text(0)}": text(0) for n in range(400)}
    settings |= {"password": "pass\\nword", "blanks": "  both  ", "#": "!", "": "no name"}
    ours, javas = tmp_path / "ours.properties", tmp_path / "javas.properties"
    RealFs().write_file(ours, properties_text(settings, "by us"))
    told = kafka.run_tool("oracle.PropertiesFile", [str(ours), str(javas)])
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == settings
    found = parse_properties(javas.read_text(encoding="ascii"))
    assert found == {name: _as_java_stores(value) for name, value in settings.items()}


def _as_java_stores(value: str) -> str:
    """Java escapes the first character of a value if it is a blank, and none at its end.

    Kafka trims what it reads there, and so do we.
    """
    return value[:1] + value[1:].rstrip(" ")
