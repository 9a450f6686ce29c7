"""The option `where`: what a text means, and what is said to one that means nothing."""

from __future__ import annotations

import operator
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import ConfigError
from lapse.records.column_filter import Condition, Test, Value, matching
from lapse.records.column_spec import TYPES
from lapse.spark.scan.where import UNDERSTOOD, parse_where

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def one(text: str) -> Condition:
    (found,) = parse_where(text)
    return found


# --- what is understood ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("offset = 17", Condition("offset", Test.EQUAL, (17,))),
        ("offset<=>17", Condition("offset", Test.SAME, (17,))),
        ("offset != -17", Condition("offset", Test.EQUAL, (-17,), negated=True)),
        ("offset<>+17", Condition("offset", Test.EQUAL, (17,), negated=True)),
        ("partition < 3", Condition("partition", Test.LESS, (3,))),
        ("partition<=3", Condition("partition", Test.LESS_OR_EQUAL, (3,))),
        ("producer_id > 0", Condition("producer_id", Test.GREATER, (0,))),
        ("timestampType >= -1", Condition("timestampType", Test.GREATER_OR_EQUAL, (-1,))),
        ("offset IN (1,5)", Condition("offset", Test.IN, (1, 5))),
        ("offset\n not\tin(1)", Condition("offset", Test.IN, (1,), negated=True)),
        ("headers is null", Condition("headers", Test.NULL)),
        ("key Is Not Null", Condition("key", Test.NULL, negated=True)),
        ("key = X'6B31'", Condition("key", Test.EQUAL, (b"k1",))),
        ("key = x''", Condition("key", Test.EQUAL, (b"",))),
        ("value > 'é'", Condition("value", Test.GREATER, (b"\xc3\xa9",))),
        ("key in ('a', X'00ff')", Condition("key", Test.IN, (b"a", b"\x00\xff"))),
        ("topic = 'it''s'", Condition("topic", Test.EQUAL, ("it's",))),
        ("topic = 'AND'", Condition("topic", Test.EQUAL, ("AND",))),
        (r"topic = '\n%_'", Condition("topic", Test.EQUAL, (r"\n%_",))),
        ("topic LIKE 'a''b%'", Condition("topic", Test.STARTS_WITH, ("a'b",))),
        ("topic like '%b'", Condition("topic", Test.ENDS_WITH, ("b",))),
        ("topic not like '%a b%'", Condition("topic", Test.CONTAINS, ("a b",), negated=True)),
        ("topic like 'a'", Condition("topic", Test.EQUAL, ("a",))),
        ("topic like '%'", Condition("topic", Test.ENDS_WITH, ("",))),
        ("is_tombstone = true", Condition("is_tombstone", Test.EQUAL, (True,))),
        ("control != False", Condition("control", Test.EQUAL, (False,), negated=True)),
    ],
)
def test_a_condition_is_what_sql_has_it_mean(text: str, expected: Condition) -> None:
    found = one(f" {text} ")
    assert found == expected
    assert [type(value) for value in found.values] == [type(value) for value in expected.values]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31 12:00Z", NOON),
        ("2026-01-31T14:00:00.000000+02:00", NOON),
        ("2026-01-31T12:00:00.5-00:30", NOON + timedelta(minutes=30, milliseconds=500)),
        ("1969-12-31T23:59:59.999999Z", EPOCH - timedelta(microseconds=1)),
        ("0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999+00:00", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_times_say_their_zone(text: str, time: datetime) -> None:
    for name in ("timestamp", "create_time", "append_time", "horizon"):
        assert one(f"{name} >= TIMESTAMP'{text}'").values == (micros(time),)
        assert one(f"{name} in (timestamp '{text}')").values == (micros(time),)


def test_a_zone_may_lead_beyond_the_times_that_python_has() -> None:
    hours = 3_600_000_000
    first = micros(datetime.min.replace(tzinfo=UTC))
    last = micros(datetime.max.replace(tzinfo=UTC))
    early = one("timestamp > TIMESTAMP '0001-01-01T00:00:00+14:00'")
    late = one("timestamp < TIMESTAMP '9999-12-31T23:59:59.999999-12:00'")
    assert early.values + late.values == (first - 14 * hours, last + 12 * hours)


def test_several_conditions_all_hold() -> None:
    found = parse_where("offset>=5 and topic like 'a%'AND key IS NOT NULL\nAnd key != ' AND '")
    assert [condition.column for condition in found] == ["offset", "topic", "key", "key"]


def test_every_column_may_be_asked() -> None:
    for name in TYPES:
        assert one(f"{name} is null").column == name


def test_it_travels_to_tasks() -> None:
    found = parse_where("key in ('a', X'00') and timestamp < timestamp '2026-01-31T12:00:00Z'")
    assert pickle.loads(pickle.dumps(found)) == found


# --- what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at 1: the end is no column: there are key, value"),
        ("offset", "at 7: the end is none of = "),
        ("nobody = 5", "at 1: nobody is no column"),
        ("Offset = 5", "at 1: Offset is no column"),
        ("`offset` = 5", "at 1: `offset` = 5 is no word"),
        ("headers.key = 'k'", "at 8: .key = 'k' is no word"),
        ("5 < offset", "at 1: 5 is no column"),
        ("not (offset = 5)", "at 1: not is no column"),
        ("is_tombstone", "at 13: the end is none of = "),
        ("length(key) = 5", r"at 1: length is no column"),
        ("offset = 1 or offset = 2", "at 12: or is not AND"),
        ("offset = 1, offset = 2", "at 11: , is not AND"),
        ("offset = 1 and", "at 15: the end is no column"),
        ("offset between 1 and 5", "at 8: between is none of = "),
        ("offset not = 5", "at 12: = is none of IN LIKE"),
        ("offset is 5", "at 11: 5 is not NULL"),
        ("offset = ", "at 10: offset is compared with a whole number, not with the end"),
        ("offset = NULL", "at 10: offset is compared with a whole number, not with NULL"),
        ("offset in (1, null)", "at 15: offset is compared with a whole number, not with null"),
        ("offset in ()", r"at 12: offset is compared with a whole number, not with \)"),
        ("offset in 1", r"at 11: 1 is not \("),
        ("offset in (1", r"at 13: the end is not \)"),
        ("offset = '5'", "at 10: offset is compared with a whole number, not with '5'"),
        ("offset = true", "at 10: offset is compared with a whole number, not with true"),
        ("offset = key", "at 10: offset is compared with a whole number, not with key"),
        ("offset = 1.5", "at 10: 1.5 is no word"),
        ("offset = 5L", "at 10: 5L is no word"),
        ("offset = 9223372036854775808", "at 10: 9223372036854775808 is beyond 64 bits"),
        ("offset = -9223372036854775809", "at 10: -9223372036854775809 is beyond 64 bits"),
        ("offset = " + "9" * 5000, "at 10: 9999"),
        ("partition = 2147483648", "at 13: 2147483648 is beyond 32 bits"),
        ("key = 5", "at 7: key is compared with a 'text' or bytes, X'6B31', not with 5"),
        ("key = X'6'", "at 7: X'6' is not two hexadecimal digits a byte"),
        ("key = X'6g'", "at 7: X'6g' is not two hexadecimal digits a byte"),
        ("key = 'a", "at 7: 'a is a text without its end"),
        ("key = 'a''", "at 7: 'a'' is a text without its end"),
        ("topic = X'61'", "at 9: topic is compared with a 'text', not with X'61'"),
        ("topic = 'a' 'b'", "at 13: 'b' is not AND"),
        ('topic = "a"', 'at 9: "a" is no word'),
        ("topic = '\ud800'", "at 9: .* is not Unicode"),
        ("key = '\ud800'", "at 7: .* is not Unicode"),
        ("topic like 'a_'", "at 12: % _ and .* are not understood within a pattern"),
        ("topic like 'a%b'", "at 12: % _ and"),
        ("topic like '%a%%'", "at 12: % _ and"),
        (r"topic like 'a\%'", "at 12: % _ and"),
        ("topic like 5", "at 12: topic is compared with a 'text', not with 5"),
        ("key like 'a%'", "at 10: LIKE is for texts, and key is none"),
        ("control = 1", "at 11: control is compared with TRUE or FALSE, not with 1"),
        ("control = 'true'", "at 11: control is compared with TRUE or FALSE"),
        ("headers = 5", "at 11: headers is compared with no literal, not with 5"),
        ("timestamp > 5", "at 13: timestamp is compared with TIMESTAMP '2026-01-31T12:00:00Z'"),
        ("timestamp > '2026-01-31T12:00:00Z'", "at 13: timestamp is compared with TIMESTAMP"),
        ("timestamp > TIMESTAMP '2026-01-31T12:00:00'", "at 13: .* does not say its zone"),
        ("timestamp > TIMESTAMP '2026-01-31T12:00:00 UTC'", "at 13: .* is no time like"),
        ("timestamp > TIMESTAMP '2026-01-31'", "at 13: .* is no time like"),
        ("timestamp > TIMESTAMP '2026-13-31T12:00:00Z'", "at 13: .* month must be in 1..12"),
        ("timestamp > TIMESTAMP '2026-01-31T12:00:00+25:00'", "at 13: .*"),
        ("timestamp > TIMESTAMP '2026-01-31T12:00:00.1234567Z'", "with microseconds at most"),
        ("timestamp > TIMESTAMP", "at 13: timestamp is compared with TIMESTAMP"),
        ("offset = 5; drop", "at 11: ; drop is no word"),
        ("offset == 5", "at 9: offset is compared with a whole number, not with ="),
        ("offset = 5 -- all", "at 12: -- all is no word"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse_where(text)
    assert str(raised.value).startswith(f"option where={text!r}: at ")
    assert str(raised.value).endswith(UNDERSTOOD)


# --- beside a slow twin ---------------------------------------------------------------------------

NAMES = ("key", "topic", "partition", "offset", "timestamp", "is_tombstone")
ROWS: dict[str, list[Value | None]] = {
    "key": [b"", b"a", b"it's", b"\xc3\xa9", b"\xff", None],
    "topic": ["", "a", "ab", "it's", "é", "%", None],
    "partition": [0, 1, -7, None],
    "offset": [-1, 0, 5, 1 << 62, None],
    "timestamp": [-1, 0, micros(NOON), None],
    "is_tombstone": [True, False, None],
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Judged = Callable[[Any], bool | None]


def written(value: Value, rng: random.Random) -> str:
    if isinstance(value, bool):
        return rng.choice([str(value), str(value).upper()])
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    try:
        return rng.choice([f"X'{value.hex()}'", written(value.decode(), rng)])
    except UnicodeDecodeError:
        return f"x'{value.hex().upper()}'"


def literal(name: str, value: Value, rng: random.Random) -> str:
    if name != "timestamp":
        return written(value, rng)
    assert isinstance(value, int)
    time = (EPOCH + timedelta(microseconds=value)).isoformat()
    return f"TIMESTAMP '{time}'"


def compared(name: str, rng: random.Random) -> tuple[str, Judged]:
    sign, value = rng.choice([*OPERATORS, "<=>"]), rng.choice(ROWS[name][:-1])
    assert value is not None
    text = f"{name} {sign} {literal(name, value, rng)}"
    if sign == "<=>":
        return text, lambda row: row == value
    return text, lambda row: None if row is None else OPERATORS[sign](row, value)


def chosen(name: str, rng: random.Random) -> tuple[str, Judged]:
    some = rng.sample([v for v in ROWS[name] if v is not None], k=rng.randrange(1, 3))
    negated = rng.random() < 0.5
    texts = ",".join(literal(name, value, rng) for value in some)
    text = f"{name} {'not ' * negated}in ({texts})"
    return text, lambda row: None if row is None else (row in some) is not negated


def null(name: str, rng: random.Random) -> tuple[str, Judged]:
    negated = rng.random() < 0.5
    return f"{name} is {'NOT ' * negated}null", lambda row: (row is None) is not negated


def like(_: str, rng: random.Random) -> tuple[str, Judged]:
    part, negated = rng.choice(["", "a", "b", "'s", "é"]), rng.random() < 0.5
    before, after = rng.choice(["", "%"]), rng.choice(["", "%"])
    pattern = written(before + part + after, rng)

    def judge(row: str | None) -> bool | None:
        if row is None:
            return None
        begins = [0] if not before else range(len(row) + 1)
        ends = [len(row)] if not after else range(len(row) + 1)
        return any(row[a:b] == part for a in begins for b in ends if a <= b) is not negated

    return f"topic {'NOT ' * negated}LIKE {pattern}", judge


@pytest.mark.parametrize("seed", range(5))
def test_records_are_judged_as_a_slow_reader_would(seed: int) -> None:
    rng = random.Random(seed)
    rows = [{name: rng.choice(ROWS[name]) for name in NAMES} for _ in range(40)]
    columns = {name: pa.array([row[name] for row in rows], TYPES[name]) for name in NAMES}
    for _ in range(200):
        asked: list[tuple[str, str, Judged]] = []
        for _ in range(rng.randrange(1, 4)):
            make = rng.choice([compared, compared, chosen, null, like])
            name = "topic" if make is like else rng.choice(NAMES)
            asked.append((name, *make(name, rng)))
        text = rng.choice([" and ", " AND ", "\n And "]).join(text for _, text, _ in asked)
        expected = [all(judge(row[name]) is True for name, _, judge in asked) for row in rows]
        assert matching(columns, parse_where(text)).tolist() == expected, text


# --- garbage --------------------------------------------------------------------------------------

WORDS = (
    *TYPES, *OPERATORS, "<=>", "and", "in", "not", "like", "is", "null", "(", ")", ",", "'", "''",
    "X'", "x'6b'", "'a%'", "true", "5", "-5", "99999999999999999999", "timestamp '", ".", "\x00",
    "TIMESTAMP '2026-01-31T12:00:00Z'", "\u00a0", "\u0661", "ſ", "\ud800", "\n", "or", "%", "`",
)  # fmt: skip


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)))
def test_whatever_is_written_is_understood_or_refused(text: str) -> None:
    for given_text in (text, f"offset {text}", f"key = {text}", f"offset = 5 and {text}"):
        with suppress(ConfigError):
            found = parse_where(given_text)
            assert found
            assert {condition.column for condition in found} <= TYPES.keys()
