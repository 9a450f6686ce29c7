"""The option `where`: conditions on columns as SQL writes them, to those that tasks judge by.

    where     = condition { AND condition }
    condition = column ( = | <=> | != | <> | < | <= | > | >= ) literal
              | column [ NOT ] IN ( literal { , literal } )
              | column [ NOT ] LIKE text
              | column IS [ NOT ] NULL

A condition means what it means in SQL: compared with null nothing is true, and nothing is false.
Whatever might mean something else in Spark is refused, and so is all that is not understood: a
condition that is passed over would give wrong rows without a word.

Columns compare with literals of their own type alone. A text has no escapes but two quotes for one;
beside a column of bytes it is its UTF-8. A time says its zone, else it would be another moment for
another session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa

from lapse.base.errors import ConfigError
from lapse.records.column_filter import Condition, Test, Value
from lapse.records.column_spec import TIME, TYPES

UNDERSTOOD = (
    "understood are conditions with AND between them, each of a column and one of: "
    "= <=> != <> < <= > >= and a literal, [NOT] IN (literal, …), IS [NOT] NULL, "
    "[NOT] LIKE 'text%', '%text' or '%text%'; literals are 17, 'text', X'6B31', TRUE, FALSE, "
    "TIMESTAMP '2026-01-31T12:00:00Z'"
)


def parse_where(text: str) -> tuple[Condition, ...]:
    """Raises ConfigError with the text, the place in it, and what is understood."""
    try:
        return _Reader(text).conditions()
    except _NotUnderstood as e:
        raise ConfigError(f"option where={text!r}: at {e.at + 1}: {e}; {UNDERSTOOD}") from e


class _NotUnderstood(ValueError):
    """What is wrong, and where."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


# --- words and signs ------------------------------------------------------------------------------

WORD, SIGN, NUMBER, TEXT, BYTES, TRUTH, MOMENT, GAP, END = (
    "word", "sign", "number", "text", "bytes", "truth", "moment", "gap", "end",
)  # fmt: skip
_QUOTED = r"'(?:[^']|'')*'(?!')"
_TOKEN = re.compile(
    rf"""
    (?P<{MOMENT}>timestamp\s*{_QUOTED})
    | (?P<{BYTES}>x{_QUOTED})
    | (?P<{TEXT}>{_QUOTED})
    | (?P<{NUMBER}>[+-]?[0-9]+(?![\w.]))
    | (?P<{TRUTH}>(?:true|false)\b)
    | (?P<{WORD}>[a-z_]\w*)
    | (?P<{SIGN}><=>|<=|>=|<>|!=|[=<>(),])
    | (?P<{GAP}>\s+)
    | (?P<{END}>\Z)
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, a sign or a literal; where it begins."""

    kind: str
    text: str
    at: int

    @property
    def name(self) -> str:
        """Of a keyword or a sign; nothing of a literal."""
        return self.text.upper() if self.kind in {WORD, SIGN} else ""

    @property
    def quoted(self) -> str:
        """What is between the quotes."""
        return self.text[self.text.index("'") + 1 : -1].replace("''", "'")

    def __str__(self) -> str:
        return "the end" if self.kind == END else self.text


def _tokens(text: str) -> Iterator[_Token]:
    """All of a text; the last one is its end."""
    at, kind = 0, ""
    while kind != END:
        found = _TOKEN.match(text, at)
        if found is None:
            what = "a text without its end" if text[at] == "'" else "no word, sign or literal"
            raise _NotUnderstood(at, f"{text[at : at + 20]} is {what}")
        kind = str(found.lastgroup)
        if kind != GAP:
            yield _Token(kind, found[0], at)
        at = found.end()


# --- literals -------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII
)


def _whole(token: _Token, *, bits: int) -> int:
    number = int(token.text)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"is beyond {bits} bits")
    return number


def _text(token: _Token) -> str:
    token.quoted.encode()  # Python has texts that are none of Unicode's
    return token.quoted


def _utf8(token: _Token) -> bytes:
    return token.quoted.encode()


def _bytes(token: _Token) -> bytes:
    if not re.fullmatch("(?:[0-9a-fA-F]{2})*", token.quoted):
        raise ValueError("is not two hexadecimal digits a byte")
    return bytes.fromhex(token.quoted)


def _truth(token: _Token) -> bool:
    return token.text.upper() == "TRUE"


def _micros(token: _Token) -> int:
    found = _MOMENT.fullmatch(token.quoted)
    if found is None:
        raise ValueError("is no time like 2026-01-31T12:00:00Z, with microseconds at most")
    if found["zone"] is None:
        raise ValueError("does not say its zone: Z, or as +02:00")
    return (datetime.fromisoformat(found[0]) - _EPOCH) // _MICRO


_LITERALS: Mapping[pa.DataType, Mapping[str, Callable[[_Token], Value]]] = {
    pa.binary(): {TEXT: _utf8, BYTES: _bytes},
    pa.string(): {TEXT: _text},
    pa.int32(): {NUMBER: partial(_whole, bits=32)},
    pa.int64(): {NUMBER: partial(_whole, bits=64)},
    pa.bool_(): {TRUTH: _truth},
    TIME: {MOMENT: _micros},
}
_WRITTEN: Mapping[str, str] = {
    NUMBER: "a whole number",
    TEXT: "a 'text'",
    BYTES: "bytes, X'6B31'",
    TRUTH: "TRUE or FALSE",
    MOMENT: "TIMESTAMP '2026-01-31T12:00:00Z'",
}


# --- conditions -----------------------------------------------------------------------------------

_COMPARED: Mapping[str, tuple[Test, bool]] = {
    "=": (Test.EQUAL, False),
    "<=>": (Test.SAME, False),
    "!=": (Test.EQUAL, True),
    "<>": (Test.EQUAL, True),
    "<": (Test.LESS, False),
    "<=": (Test.LESS_OR_EQUAL, False),
    ">": (Test.GREATER, False),
    ">=": (Test.GREATER_OR_EQUAL, False),
}
_PATTERN = re.compile(r"(?P<before>%?)(?P<text>[^%_\\]*)(?P<after>%?)")
_LIKE: Mapping[tuple[str, str], Test] = {
    ("", ""): Test.EQUAL,
    ("", "%"): Test.STARTS_WITH,
    ("%", ""): Test.ENDS_WITH,
    ("%", "%"): Test.CONTAINS,
}


class _Reader:
    """One pass over the words of a text."""

    def __init__(self, text: str) -> None:
        self._left = _tokens(text)
        self._next = next(self._left)

    def conditions(self) -> tuple[Condition, ...]:
        """All of them, up to the end."""
        found = [self._condition()]
        while self._next.kind != END:
            self._expect("AND")
            found.append(self._condition())
        return tuple(found)

    def _condition(self) -> Condition:
        column = self._column()
        if self._next.name == "IS":
            self._take()
            negated = self._took("NOT")
            self._expect("NULL")
            return Condition(column, Test.NULL, negated=negated)
        if self._next.name in _COMPARED:
            test, negated = _COMPARED[self._take().name]
            return Condition(column, test, (self._literal(column),), negated)
        negated = self._took("NOT")
        asked = self._take()
        if asked.name == "IN":
            return Condition(column, Test.IN, self._literals(column), negated)
        if asked.name == "LIKE":
            test, value = self._pattern(column)
            return Condition(column, test, (value,), negated)
        known = ("IN", "LIKE") if negated else (*_COMPARED, "IS", "IN", "LIKE")
        raise _NotUnderstood(asked.at, f"{asked} is none of {' '.join(known)}")

    def _column(self) -> str:
        token = self._take()
        if token.kind != WORD or token.text not in TYPES:
            columns = ", ".join(TYPES)
            raise _NotUnderstood(token.at, f"{token} is no column: there are {columns}")
        return token.text

    def _literals(self, column: str) -> tuple[Value, ...]:
        """Those of IN, with their parentheses."""
        self._expect("(")
        found = [self._literal(column)]
        while self._took(","):
            found.append(self._literal(column))
        self._expect(")")
        return tuple(found)

    def _literal(self, column: str) -> Value:
        token, known = self._take(), _LITERALS.get(TYPES[column], {})
        read = known.get(token.kind)
        if read is None:
            takes = " or ".join(_WRITTEN[kind] for kind in known) or "no literal"
            raise _NotUnderstood(token.at, f"{column} is compared with {takes}, not with {token}")
        try:
            return read(token)
        except ValueError as e:
            raise _NotUnderstood(token.at, f"{token} {_reason(e)}") from e

    def _pattern(self, column: str) -> tuple[Test, Value]:
        at = self._next.at
        if TYPES[column] != pa.string():
            raise _NotUnderstood(at, f"LIKE is for texts, and {column} is none")
        found = _PATTERN.fullmatch(str(self._literal(column)))
        if found is None:
            raise _NotUnderstood(at, r"% _ and \ are not understood within a pattern")
        return _LIKE[found["before"], found["after"]], found["text"]

    def _take(self) -> _Token:
        taken = self._next
        if taken.kind != END:
            self._next = next(self._left)
        return taken

    def _took(self, name: str) -> bool:
        return self._next.name == name and bool(self._take())

    def _expect(self, name: str) -> None:
        token = self._take()
        if token.name != name:
            raise _NotUnderstood(token.at, f"{token} is not {name}")


def _reason(error: ValueError) -> str:
    """What Python says of a text that no UTF-8 is of is long."""
    return "is not Unicode" if isinstance(error, UnicodeError) else str(error)
