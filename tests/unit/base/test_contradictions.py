"""Which setting gives way where two contradict each other."""

from __future__ import annotations

import re

import pytest

from lapse.base.config import broker_config, settled_config, topic_config
from lapse.base.errors import ConfigError

MIN, MAX = "min.compaction.lag.ms", "max.compaction.lag.ms"
ZSTD, OLD = ("compression.type", "zstd"), ("message.format.version", "0.10.2")
LAGS_TEXT = f"{MIN}=10: allowed is at most {MAX}, which is 5"
ZSTD_TEXT = (
    "compression.type=zstd: allowed with message.format.version 0.11 or later, and it stands for "
    "message format v1"
)


# A topic's own settings, the broker's, what is wrong, what holds, (min lag, max lag) then.
LAGS = {
    "the broker's max lag": ({MIN: "10"}, {"log.cleaner." + MAX: "5"}, f"{MAX}=10", (10, 10)),
    "the broker's min lag": ({MAX: "5"}, {"log.cleaner." + MIN: "10"}, f"{MIN}=5", (5, 5)),
    "both its own": ({MIN: "10", MAX: "5"}, {}, f"{MAX}=10", (10, 10)),
    "both the broker's": (
        {}, {"log.cleaner." + MIN: "10", "log.cleaner." + MAX: "5"}, f"{MAX}=10", (10, 10),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LAGS)
def test_what_is_inherited_gives_way(case: str) -> None:
    """And where that tells nothing, records stay."""
    own, inherited, instead, lags = LAGS[case]
    config, (found,) = settled_config(own, inherited)
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == lags
    assert str(found) == f"{LAGS_TEXT}; {instead} holds until that is mended"
    with pytest.raises(ConfigError, match=f"^{re.escape(LAGS_TEXT)}$"):
        topic_config(own, inherited)


@pytest.mark.parametrize(
    ("own", "inherited"),
    [
        (dict([ZSTD, OLD]), {}),
        (dict([ZSTD]), {"log.message.format.version": OLD[1]}),
        (dict([OLD]), dict([ZSTD])),
        ({}, {**dict([ZSTD]), "log.message.format.version": OLD[1]}),
    ],
    ids=["topic", "the broker's format", "the broker's codec", "broker"],
)
def test_old_formats_have_no_zstd(own: dict[str, str], inherited: dict[str, str]) -> None:
    """The format stays whosever it is: its readers know no other."""
    config, (found,) = settled_config(own, inherited)
    assert (config.compression_type, config.message_format_version) == ("producer", 1)
    assert str(found) == f"{ZSTD_TEXT}; compression.type=producer holds until that is mended"
    with pytest.raises(ConfigError, match=f"^{re.escape(ZSTD_TEXT)}$"):
        topic_config(own, inherited)


def test_what_agrees_stays() -> None:
    for version in ("0.11.0", "3.0"):
        assert settled_config({**dict([ZSTD]), "message.format.version": version})[1] == ()
    for codec in ("producer", "uncompressed", "gzip", "snappy", "lz4"):
        config, found = settled_config({"compression.type": codec, **dict([OLD])})
        assert (config.compression_type, found) == (codec, ())
    assert settled_config({MIN: "5", MAX: "5"})[1] == ()


def test_a_file_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compression.type=zstd"):
        broker_config({"compression.type": "zstd", "log.message.format.version": "0.9"})
