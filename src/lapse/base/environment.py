"""Broker settings from the environment, as in Apache's image of Kafka.

`KAFKA_LOG_RETENTION_MS` is `log.retention.ms`: of the rest of the name `_` is a dot, `__` an
underscore and `___` a dash. Only what names a setting counts: KAFKA_HOME and KAFKA_HEAP_OPTS are
somebody else's. The environment counts before a properties file, and the command line before both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lapse.base.config import (
    ALIASES,
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    broker_setting,
    of_listener,
)
from lapse.base.errors import ConfigError
from lapse.base.nearest import nearest
from lapse.base.security_settings import is_known, of_security

PREFIX = "KAFKA_"
_SIGNS = {"_": ".", "__": "_", "___": "-"}
# Of brokers, and those by which a broker's file says a default for its topics.
NAMES = (
    *(one.name for one in BROKER_SETTINGS),
    *(name for one in TOPIC_SETTINGS for name, _ in one.synonyms),
)


def settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that are there, by their own names."""
    return {
        name: text
        for variable, text in environment.items()
        if (name := _setting(variable)) is not None and is_heeded(name)
    }


def misspelt_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are nearly a setting's, and what was probably meant."""
    found = {}
    for variable in sorted(environment):
        name = _setting(variable)
        if name is None or is_heeded(name):
            continue
        if (near := nearest(name, NAMES)) is not None:
            found[variable] = variable_of(near)
    return found


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """For a process that gets them otherwise."""
    return {
        variable: text
        for variable, text in environment.items()
        if (name := _setting(variable)) is None or not is_heeded(name)
    }


def _setting(variable: str) -> str | None:
    """The name that a variable would be; None where it is not Kafka's."""
    if not variable.startswith(PREFIX) or variable == PREFIX:
        return None
    rest = variable.removeprefix(PREFIX).lower()
    return re.sub("_{1,3}", lambda found: _SIGNS[found[0]], rest)


def variable_of(name: str) -> str:
    """By which a setting is said."""
    text = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return PREFIX + text.upper()


def is_heeded(name: str) -> bool:
    """Whether a broker takes a setting of that name."""
    if of_security(name):
        return is_known(name) or of_listener(name) is not None
    if name in ALIASES:
        return True
    try:
        broker_setting(name)
    except ConfigError:
        return False
    return True
