"""Settings of a topic that contradict each other, and which of them gives way.

Where settings are set, a contradiction is refused (`config.topic_config`). It can be found all the
same: a broker default that was edited beside one topic's own setting, a store from before a rule.
Then the topic keeps what is its own, the other setting gives way as far as it must, and
the one who found it says so; no other topic may suffer.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

MIN_LAG, MAX_LAG = "min.compaction.lag.ms", "max.compaction.lag.ms"
_V2 = 2


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two settings that cannot both hold.

    Attributes:
        text: what is wrong, with the values and what is allowed.
        instead: the setting that gave way, as it holds: `name=value`.
    """

    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.text}; {self.instead} holds until that is mended"


def settle(values: dict[str, Any], own: Container[str]) -> tuple[Contradiction, ...]:
    """Change `values` (by field) where they contradict each other, and tell.

    `own`: names of the settings that the topic has itself; the others are inherited.
    """
    return (*_lags(values, own), *_codec(values))


def _lags(values: dict[str, Any], own: Container[str]) -> Iterator[Contradiction]:
    """KIP-354: nothing must be compacted before it may be. Where both are set, records stay."""
    least, most = values["min_compaction_lag_ms"], values["max_compaction_lag_ms"]
    if least <= most:
        return
    text = f"{MIN_LAG}={least}: allowed is at most {MAX_LAG}, which is {most}"
    if MAX_LAG in own and MIN_LAG not in own:
        values["min_compaction_lag_ms"] = most
        yield Contradiction(text, f"{MIN_LAG}={most}")
    else:
        values["max_compaction_lag_ms"] = least
        yield Contradiction(text, f"{MAX_LAG}={least}")


def _codec(values: dict[str, Any]) -> Iterator[Contradiction]:
    """Old formats have no zstd (KIP-110); who sets one has readers that know no newer one."""
    if values["compression_type"] != "zstd" or values["message_format_version"] >= _V2:
        return
    values["compression_type"] = "producer"
    yield Contradiction(
        "compression.type=zstd: allowed with message.format.version 0.11 or later, and it stands "
        f"for message format v{values['message_format_version']}",
        "compression.type=producer",
    )
