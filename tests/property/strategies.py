"""Random records and batches, small but with every oddity the format allows."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from lapse.records.builder import BatchSpec, NewRecord
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages

NOW = 1_700_000_000_000

# Few keys, so that they meet again; the empty one, and lengths on both sides of a word.
KEYS = [b"", b"a", b"b", b"key-0007", b"key-00008", b"key-000000000016", b"k" * 33]

keys = st.none() | st.sampled_from(KEYS)
values = st.none() | st.just(b"") | st.binary(max_size=20) | st.binary(min_size=120, max_size=140)
headers = st.lists(
    st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=2
).map(tuple)
# Deltas of one to ten varint bytes; -1 is "no timestamp".
timestamps = st.just(-1) | st.integers(0, 300) | st.integers(NOW - 9000, NOW) | st.just(1 << 62)


@st.composite
def new_records(draw: st.DrawFn, *, gaps: bool = True, max_size: int = 6) -> list[NewRecord]:
    """Records of one batch; with `gaps`, offset deltas as a rewrite may have left them."""
    n = draw(st.integers(0 if gaps else 1, max_size))
    delta = -1
    out = []
    for _ in range(n):
        delta += draw(st.sampled_from([1, 1, 1, 2, 70])) if gaps else 1
        out.append(NewRecord(draw(keys), draw(values), draw(timestamps), draw(headers), delta))
    return out


@st.composite
def specs(draw: st.DrawFn, records: list[NewRecord], base_offset: int) -> BatchSpec:
    """Header fields that go with the records, as a broker or an earlier round wrote them."""
    last = max((r.offset_delta or 0 for r in records), default=0)
    append_time = draw(st.booleans())
    with_producer = draw(st.booleans())
    greatest = max((r.timestamp for r in records), default=draw(st.just(5)))
    return BatchSpec(
        base_offset=base_offset,
        codec=draw(st.sampled_from(Codec)) if records else Codec.NONE,
        timestamp_type=TimestampType(append_time),
        append_time=max(draw(st.integers(NOW, NOW + 50)), greatest) if append_time else -1,
        producer_id=draw(st.integers(0, 2)) if with_producer else -1,
        producer_epoch=draw(st.integers(0, 9)) if with_producer else -1,
        base_sequence=draw(st.integers(0, (1 << 31) - 1)) if with_producer else -1,
        leader_epoch=draw(st.integers(-1, 3)),
        horizon_ms=draw(st.none() | st.integers(NOW - 2, NOW + 2)) if records else None,
        last_offset_delta=last + draw(st.sampled_from([0, 0, 1, 5])),
    )


OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


@st.composite
def message_sets(
    draw: st.DrawFn,
    base_offset: int,
    *,
    magics: Sequence[int] = (0, 1),
    codecs: Sequence[Codec] = OLD_CODECS,
) -> bytes:
    """Messages of an old format, plain or in one wrapper."""
    offset, messages = base_offset, []
    for _ in range(draw(st.integers(1, 4))):
        messages.append(Message(offset, draw(timestamps), draw(keys), draw(values)))
        offset += draw(st.sampled_from([1, 1, 3]))
    append_time = draw(st.booleans())
    return build_messages(
        messages,
        MessageSpec(
            draw(st.sampled_from(magics)),
            draw(st.sampled_from(codecs)),
            TimestampType(append_time),
            NOW if append_time else -1,
        ),
    )
