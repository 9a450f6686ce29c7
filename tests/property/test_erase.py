"""Random replicas with a key in whatever place: it is found there, and nowhere else.

What is expected is known from how the files were put together; no parser of ours is asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.lifecycle.erase.findings import Count
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.order import Due, tombstones_due
from lapse.lifecycle.erase.proof import NOT_PROVEN, PROVEN, REMAINS, judge, totals
from lapse.lifecycle.erase.replicas import ReplicaFindings, Where, look_through
from lapse.lifecycle.erase.search import Bound, make_search, spec_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.clock import ManualClock

KEYS = (b"user-4711", b"u", b"user-471100000000000000")
NEVER = b"never-written"
OTHERS = (b"other-4711", b"user-4712", b"user-47110", b"x", b"user-4722222222222222222", b"")
NOW = 1_900_000_000_000


@dataclass(frozen=True)
class Part:
    """Some bytes of a file, and what must be found in them.

    Attributes:
        sure: records (with value, tombstones) of each of KEYS in sound batches.
        there: keys in bytes that are damaged but not compressed; they must be found somehow.
        opaque: bytes that may be compressed.
        readable: a batch, or messages, as they should be.
    """

    data: bytes
    sure: tuple[tuple[int, int], ...] = ((0, 0),) * len(KEYS)
    there: frozenset[int] = frozenset()
    opaque: bool = False
    readable: bool = False


def sound(data: bytes, records: list[tuple[bytes | None, bytes | None]]) -> Part:
    def both(key: bytes) -> tuple[int, int]:
        values = [value for k, value in records if k == key]
        return sum(v is not None for v in values), sum(v is None for v in values)

    return Part(data, tuple(both(key) for key in KEYS), readable=True)


keys = st.one_of(st.sampled_from(OTHERS), st.none(), st.sampled_from(KEYS))
values = st.one_of(st.none(), st.binary(max_size=30).map(lambda b: b.replace(b"u", b"v")))
record_lists = st.lists(st.tuples(keys, values), min_size=1, max_size=6)


@st.composite
def batches(draw: st.DrawFn) -> Part:
    records, codec = draw(record_lists), draw(st.sampled_from(Codec))
    new = [NewRecord(key, value) for key, value in records]
    return sound(build_batch(new, BatchSpec(draw(st.integers(0, 1 << 40)), codec)), records)


@st.composite
def old_messages(draw: st.DrawFn) -> Part:
    records, base = draw(record_lists), draw(st.integers(0, 1 << 40))
    spec = MessageSpec(
        draw(st.sampled_from([0, 1])), draw(st.sampled_from([Codec.NONE, Codec.GZIP]))
    )
    messages = [Message(base + n, 5, key, value) for n, (key, value) in enumerate(records)]
    return sound(build_messages(messages, spec), records)


@st.composite
def damaged(draw: st.DrawFn) -> Part:
    """A batch with one byte changed behind its header, or cut off there."""
    records, codec = draw(record_lists), draw(st.sampled_from([Codec.NONE, Codec.LZ4]))
    data = build_batch([NewRecord(key, value) for key, value in records], BatchSpec(7, codec))
    at = draw(st.integers(61, len(data) - 1))
    changed = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
    if codec:
        return Part(changed, opaque=True)
    there = {n for n, key in enumerate(KEYS) if key in changed}
    # Where its lengths are damaged, nothing says that its codec is not.
    return Part(changed, there=frozenset(there), opaque=True)


junk = st.one_of(
    st.integers(1, 300).map(lambda n: Part(bytes(n))),
    st.binary(min_size=1, max_size=80).map(lambda b: Part(b.replace(b"u", b"v"), opaque=True)),
)
parts = st.one_of(batches(), batches(), old_messages(), damaged(), junk)
NAMES = (
    "t-0/00000000000000000000.log", "t-0/00000000000000000000.log.deleted",
    "t-0/00000000000000000003.log.cleaned", "t-0/00000000000000000003.log.swap",
    "t-0/.lapse/r1/a1/00000000000000000000-records", "t-1/00000000000000000000.log",
    "t-2.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log",
)  # fmt: skip
files = st.dictionaries(st.sampled_from(NAMES), st.lists(parts, max_size=5), min_size=1)


def looked(root: Path, wanted: tuple[bytes, ...]) -> tuple[ReplicaFindings, str]:
    search, clock = make_search(wanted), ManualClock(NOW)
    run = InlineAudits(search, clock, lambda _: None, threads=1)
    seen = look_through(Where(str(root), "t"), run, clock)
    return seen, judge([seen], spec_of(search, "5a17"), "t").state


def written(root: Path, made: dict[str, list[Part]]) -> None:
    for name, content in made.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(part.data for part in content))


@given(files)
def test_every_record_is_counted_and_every_place_is_found(made: dict[str, list[Part]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        written(root, made)
        everything = [part for content in made.values() for part in content]
        seen, state = looked(root, KEYS)
        counts = totals([seen])
        for n in range(len(KEYS)):
            count = counts.get(n, Count(n))
            records = sum(part.sure[n][0] for part in everything)
            tombstones = sum(part.sure[n][1] for part in everything)
            there = any(n in part.there for part in everything)
            opaque = any(part.opaque for part in everything)
            if there or opaque:  # more than that may be found in what is damaged
                assert count.records >= records
                assert count.tombstones >= tombstones
            else:
                assert (count.records, count.tombstones, count.raw) == (records, tombstones, 0)
            assert not there or count.raw + count.records + count.tombstones > records + tombstones
            assert not records or state == REMAINS
            assert not there or state in {REMAINS, NOT_PROVEN}
        total = sum((root / name).stat().st_size for name in made)
        assert sum(found.bytes_read for found in seen.files) == total


def hides(content: list[Part]) -> bool:
    """Whether some bytes may be a compressed batch, for all that can be told.

    What lies beside something damaged cannot be told from it.
    """
    beside = any(not (a.readable or b.readable) for a, b in pairwise(content))
    return beside or any(part.opaque for part in content)


@given(files)
def test_a_key_that_is_nowhere_is_gone_unless_something_cannot_be_seen(
    made: dict[str, list[Part]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), made)
        opaque = any(hides(content) for content in made.values())
        state = looked(Path(folder), (NEVER,))[1]
        assert state == PROVEN or (opaque and state == NOT_PROVEN)


# --- each kind of place, for certain --------------------------------------------------------------

KEY = KEYS[0]
PLACES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "live segment": (NAMES[0], lambda data: data, REMAINS),
    "deleted": (NAMES[1], lambda data: data, REMAINS),
    "attempt": (NAMES[4], lambda data: data, REMAINS),
    "leaving partition": (NAMES[6], lambda data: data, REMAINS),
    "damaged": (NAMES[0], lambda data: data[:-1] + b"\x77", REMAINS),
    "half-written tail": (NAMES[0], lambda data: data[: data.index(KEY) + len(KEY)], NOT_PROVEN),
    "unknown file": ("t-0/core", lambda data: b"..." + data[data.index(KEY) :], NOT_PROVEN),
}


ALONE = {"unknown file"}  # beside batches, what cannot be read may be a compressed one
AT_THE_END = {"half-written tail"}


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=5)
@given(others=st.lists(batches(), min_size=2, max_size=4))
def test_a_key_in_each_kind_of_place(place: str, others: list[Part]) -> None:
    name, put, state = PLACES[place]
    free = [part for part in others if part.sure[0] == (0, 0)]
    data = Part(put(build_batch([NewRecord(b"other", b"v"), NewRecord(KEY, b"v")])))
    before = [] if place in ALONE else free[:1]
    behind = [] if place in ALONE | AT_THE_END else free[1:]
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), {NAMES[5]: free, name: [*before, data, *behind]})
        assert looked(Path(folder), (KEY,))[1] == state
        assert looked(Path(folder), (NEVER,))[1] == PROVEN


# --- which tombstones are due ---------------------------------------------------------------------

ops = st.lists(
    st.tuples(st.sampled_from(KEYS), st.booleans(), st.sampled_from(Codec), st.booleans()),
    max_size=12,
)  # key, whether it has a value, codec, whether a segment begins here


@settings(deadline=None)
@given(ops, st.integers(0, 12))
def test_a_tombstone_is_due_where_the_newest_record_is_an_older_value(
    written_ops: list[tuple[bytes, bool, Codec, bool]], bound: int
) -> None:
    newest: dict[bytes, tuple[int, bool]] = {}
    segments: dict[int, list[bytes]] = {0: []}
    for offset, (key, has_value, codec, rolls) in enumerate(written_ops):
        base = offset if rolls else max(segments)
        record = NewRecord(key, b"v" if has_value else None)
        segments.setdefault(base, []).append(build_batch([record], BatchSpec(offset, codec)))
        newest[key] = offset, has_value
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "t-3").mkdir()
        for base, content in segments.items():
            (Path(name) / "t-3" / f"{base:020d}.log").write_bytes(b"".join(content))
        seen, _ = looked(Path(name), KEYS)
    due = tombstones_due([seen], len(KEYS), [Bound(3, bound)])
    expected = [
        Due(3, n)
        for n, key in enumerate(KEYS)
        if key in newest and newest[key][1] and newest[key][0] < bound
    ]
    assert due == expected
