"""Writes docs/settings.md from the table in base/config.py, or checks that it is current.

`.venv/bin/python -m tools.settings_doc` writes the page; with `--check` it writes nothing and exits
1 if the page is not what it would write. A unit test checks the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from lapse.base.config import (
    BROKER_SETTINGS,
    LONG_MAX,
    TINY_SEGMENTS,
    TOPIC_SETTINGS,
)
from lapse.base.setting import Setting
from tools.pages import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
COMMAND = ".venv/bin/python -m tools.settings_doc"

_HEAD = f"""\
# Settings

<!-- Made from src/lapse/base/config.py by `{COMMAND}`. Change the table there, not this page. -->

Names, defaults and limits are Kafka 4.3's; our own begin with `lapse.`. A value that is not allowed
is refused with one line that names the setting and what is allowed: exit code 2 from a command,
INVALID_CONFIG to a client.

A topic's value is the first of these that is set:

1. the topic's own setting (`lapse topic create -c`, CreateTopics; `-c` for the offline commands);
2. the broker settings in the column "broker name", from left to right;
3. the default.

`min.compaction.lag.ms` may not exceed `max.compaction.lag.ms`, and `compression.type=zstd` needs a
`message.format.version` of 0.11 or later. What contradicts that is refused where it is set, for a
broker's setting with the names of the topics in the way. A properties file that was edited may
still contradict a topic's own setting: the broker starts, and says in its log which topic and what
it goes by. The broker's lag gives way to the topic's own, so far that both agree; `zstd` always
gives way to the format, as if `producer` were set.

While a broker runs, a topic's settings are changed with `kafka-configs` or any admin client
(IncrementalAlterConfigs), and so are brokers', as in Kafka: the first broker name of each row
below, save for `log.message.format.version`. They hold for all brokers or for one, win over the
properties file, and take effect at once on logs without a setting of their own. Other broker
settings are read-only: they are set in `server.properties` before a start.

## Topic settings

| setting | default | allowed | broker name | what it is for |
|---|---|---|---|---|
"""

_BROKER_HEAD = f"""
For tests of ours alone there is `{TINY_SEGMENTS.name}`: `segment.bytes` without its floor.

## Broker settings

From `server.properties`, which is read as is: names that belong to Kafka and not to Lapse are no
error there, unknown names under `lapse.` are. `broker.id` stands for `node.id` and `log.dir` for
`log.dirs`. `lapse up` and `lapse lifecycle` also take them as `-c key=value`.

The environment counts before the file, and the command line before both, as in Apache's image:
`KAFKA_LOG_RETENTION_MS` is `log.retention.ms` (`_` is a dot, `__` an underscore, `___` a dash).
Variables that name no setting are somebody else's. `lapse config check FILE` tells all that is
wrong with a file, and what of it Lapse does not heed, before a broker starts with it.

`lapse up --data DIR` reads `DIR/server.properties`, and writes it, with the defaults, when a first
start without one has served. What `-c`, `--port` and `--http-port` say is for that start alone.
`--port` is the port of the one listener there is, whose protocol stays. `DIR/lapse-up.properties`
(mode 0600) holds the settings in force for the processes of `lapse up`. A broker that died is
started again with the same ones; where they would let somebody in whom the start kept out,
`lapse up` ends with exit code 2 and says which.

A start over logs that no metadata of Lapse knows, such as a real Kafka's, is refused: nothing of
them would be served. Nothing is written then.

| setting | default | allowed | what it is for |
|---|---|---|---|
"""

_UNITS = {3_600_000: "hours", 60_000: "minutes", 1: ""}


def page() -> str:
    """The whole page."""
    topic = [(f"`{s.name}`", _default(s), _allowed(s), _synonyms(s), s.doc) for s in TOPIC_SETTINGS]
    broker = [(f"`{s.name}`", _default(s), _allowed(s), s.doc) for s in BROKER_SETTINGS]
    return _HEAD + "".join(_rows(topic)) + _BROKER_HEAD + "".join(_rows(broker))


def _rows(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    for row in rows:
        yield "| " + " | ".join(row) + " |\n"


def _default(setting: Setting) -> str:
    """As it is written in a file; the largest number there is, in words."""
    if setting.default == str(LONG_MAX):
        return "no limit"
    return f"`{setting.default}`" if setting.default else "none"


def _allowed(setting: Setting) -> str:
    """The parser's own words: what it says when it refuses."""
    try:
        setting.parse("\0 no value is like this")
    except ValueError as e:
        return re.sub(r"from (-?\d+)$", r"≥ \1", str(e))
    return "text"


def _synonyms(setting: Setting) -> str:
    names = []
    for name, factor in setting.synonyms:
        unit = _UNITS[factor]
        names.append(f"`{name}`" + (f" ({unit})" if unit else ""))
    return ", ".join(names)


def main(argv: list[str]) -> int:
    """Write or check."""
    return write_or_check(argv, __doc__, COMMAND, lambda: {PAGE: page()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
