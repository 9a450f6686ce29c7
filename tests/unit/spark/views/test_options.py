"""Options as text: Spark's names, Kafka's settings, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.views.options import OPTIONS, parse_view_options
from lapse.spark.views.spec import KEYS, PLAN, ViewOptions

PAGE = Path(__file__).parents[4] / "docs" / "data-source.md"


def test_what_is_asked_for() -> None:
    found = parse_view_options({"view": "plan", "path": "file:///logs, /more"}, 5)
    assert found == ViewOptions(PLAN, ("/logs", "/more"), 5)
    given = {
        "VIEW": "keys", "path": "/logs", "Subscribe": "a,b", "now": "7", "estimates": "TRUE",
        "maxlogsperpartition": "3", "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false", "maxMemoryBytes": "1000000", "cleanup.policy": "compact",
        "log.cleaner.backoff.ms": "5",
    }  # fmt: skip
    assert parse_view_options(given, 5) == ViewOptions(
        KEYS, ("/logs",), 7,
        (("cleanup.policy", "compact"), ("log.cleaner.backoff.ms", "5")),
        True, 3, True, False, 1_000_000, ("a", "b"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"view": "colours"}, "option view='colours'"),
        ({"path": " , "}, "option path=' , ': allowed is log directories"),
        ({"now": "noon"}, "option now='noon': allowed is ms"),
        ({"now": "-1"}, "option now='-1'"),
        ({"now": str(1 << 63)}, "option now='9223372036854775808'"),
        ({"estimates": "maybe"}, "option estimates='maybe': allowed is true"),
        ({"kafka.isolation.level": "dirty"}, "option kafka.isolation.level='dirty'"),
        ({"maxMemoryBytes": "5"}, "memory_bytes=5"),
        ({"colour": "blue"}, "colour"),
        ({"Where": "topic = 'a'"}, "option where: is of records, .* subscribe names topics"),
        ({"Kafka.Bootstrap.Servers": "b:1"}, "path (.*) or kafka.bootstrap.servers: exactly one"),
        ({"kafka.ssl.truststore.locatoin": "x"}, "is kafka.ssl.truststore.location meant"),
    ],
)
def test_what_is_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_view_options({"view": "plan", "path": "/logs", **changes}, 5)


def test_brokers_are_asked_as_they_are_for_records() -> None:
    given = {"Kafka.Bootstrap.Servers": "b:1,c:2", "kafka.Security.protocol": "SSL"}
    found = parse_view_options({"view": "plan", **given}, 5)
    assert (found.paths, found.bootstrap) == ((), "b:1,c:2")
    assert found.client == (("security.protocol", "SSL"),)


def test_the_page_names_every_option() -> None:
    part = PAGE.read_text().partition("## Views")[2]
    for name in OPTIONS:
        assert f"`{name}`" in part, name
