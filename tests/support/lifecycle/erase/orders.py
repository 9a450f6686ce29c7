"""Orders of erasure as `lapse erase` leaves them in a folder, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lapse.base.fs import RealFs
from lapse.lifecycle.erase.order import FORMAT, Forced, Order, TopicOrder, save_order
from lapse.lifecycle.erase.proof import FORMAT as REPORT_FORMAT
from lapse.lifecycle.erase.proof import PROVEN, Report, Verdict, encode_report
from lapse.lifecycle.erase.search import Bound, SearchSpec, hash_of
from lapse.lifecycle.erase.sign import seal

SALT = "00" * 16
LOWERED = Forced("max.compaction.lag.ms", None, "1000")
SIGNER = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)


def part(topic: str = "users", keys: Sequence[bytes] = (b"a", b"b"), **changed: Any) -> TopicOrder:
    """Of one topic; nothing is proven yet."""
    hashes = tuple(hash_of(key, SALT) for key in keys)
    return replace(TopicOrder(topic, "11" * 16, hashes, (Bound(0, 9),), seen=hashes), **changed)


def give(folder: Path, given_ms: int, deadline_ms: int | None, *parts: TopicOrder) -> Path:
    """An order in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    save_order(RealFs(), folder, Order(FORMAT, SALT, given_ms, deadline_ms, parts or (part(),)))
    return folder


def report(
    folder: Path, topic: str, ended_ms: int, verdict: str = PROVEN, *, number: int = 1,
    tombstones_too: bool = True,
) -> Path:  # fmt: skip
    """A signed report in the order's folder."""
    spec = SearchSpec(SALT, (hash_of(b"a", SALT),), (), None, tombstones_too)
    made = Report(
        REPORT_FORMAT, "0", "here", topic, None, spec, ended_ms - 5, ended_ms, (), Verdict(verdict)
    )
    path = folder / f"{topic}.proof{'' if number == 1 else f'-{number}'}.json"
    path.write_bytes(seal(encode_report(made), SIGNER))
    return path
