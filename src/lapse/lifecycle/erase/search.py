"""What must be gone (keys or offsets), and how a report names it without containing a key.

A report names a key by a salted hash, so that the proof of an erasure is not one more place where
the erased key stands. A reader who knows the key can check that it is the one meant.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import ConfigError, StorageError, unreadable
from lapse.base.extras import needed_for

ENDLESS = (1 << 63) - 1
KEY_FORMATS = ("text", "hex", "base64")


@dataclass(frozen=True, slots=True)
class Search:
    """What to search for; goes to tasks as JSON.

    Attributes:
        keys: distinct, none empty.
        offsets: ascending and distinct; of one partition.
        below_offset: records from this offset on may stay; None: none may.
        tombstones_too: a tombstone of a key counts as remaining, too.
    """

    keys: tuple[bytes, ...] = ()
    offsets: tuple[int, ...] = ()
    below_offset: int | None = None
    tombstones_too: bool = False

    @property
    def below(self) -> int:
        return ENDLESS if self.below_offset is None else self.below_offset

    @property
    def targets(self) -> int:
        """How many targets there are; numbered keys first, then offsets."""
        return len(self.keys) + len(self.offsets)


@dataclass(frozen=True, slots=True)
class Bound:
    """Records with a value from this offset of a partition on may stay: they came later.

    Attributes:
        leader_epoch: of the leader whose log ended there. A batch of an epoch before is none that
            came later: a replica has it alone. -1: of an order or a broker that does not say it.
    """

    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class KeyHash:
    """A key as a report names it: SHA-256 of the salt's hexadecimal text and the key's bytes."""

    sha256: str
    length: int


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """A search as a report contains it; `salt` is hexadecimal, drawn anew for every report.

    Attributes:
        bounds: only for an erasure: where the logs ended when it began.
        topic_id: hexadecimal. The bounds hold for partition directories with this topic id, not for
            those being deleted or not in use yet, and not for an older topic of the same name.
    """

    salt: str
    keys: tuple[KeyHash, ...]
    offsets: tuple[int, ...]
    below_offset: int | None
    tombstones_too: bool
    bounds: tuple[Bound, ...] = ()
    topic_id: str | None = None


def make_search(
    keys: Iterable[bytes],
    offsets: Iterable[int] = (),
    *,
    below_offset: int | None = None,
    tombstones_too: bool = False,
) -> Search:
    """Make a search; raises ConfigError for what cannot be searched for."""
    distinct = tuple(dict.fromkeys(keys))
    if not all(distinct):
        raise ConfigError("--key: allowed are keys of at least one byte")
    targets = tuple(sorted(set(offsets)))
    for number in (*targets, *(() if below_offset is None else (below_offset,))):
        if not 0 <= number <= ENDLESS:
            raise ConfigError(f"offset {number}: allowed is 0 to {ENDLESS}")
    if not distinct and not targets:
        raise ConfigError("nothing to look for: --key, --keys or --offset says what must be gone")
    if targets and below_offset is not None:
        raise ConfigError("--below-offset: allowed with keys, not with --offset")
    return Search(distinct, targets, below_offset, tombstones_too)


def spec_of(
    search: Search, salt: str, bounds: tuple[Bound, ...] = (), topic_id: str | None = None
) -> SearchSpec:
    """The search with its keys hashed."""
    return SearchSpec(
        salt,
        tuple(hash_of(key, salt) for key in search.keys),
        search.offsets,
        search.below_offset,
        search.tombstones_too,
        bounds,
        topic_id,
    )


def hash_of(key: bytes, salt: str) -> KeyHash:
    """What a report with this salt says in place of a key."""
    return KeyHash(hashlib.sha256(salt.encode() + key).hexdigest(), len(key))


def recalled(spec: SearchSpec, keys: Sequence[bytes]) -> Search | None:
    """The search of a report, given its keys in any order; None if a key is missing."""
    by_hash = {hash_of(key, spec.salt): key for key in keys}
    if not all(named in by_hash for named in spec.keys):
        return None
    return Search(
        tuple(by_hash[named] for named in spec.keys),
        spec.offsets,
        spec.below_offset,
        spec.tombstones_too,
    )


# --- keys as people give them ---------------------------------------------------------------------


def parse_key(text: str, key_format: str) -> bytes:
    """A key's bytes; raises ConfigError."""
    try:
        return _PARSERS[key_format](text)
    except (ValueError, binascii.Error) as e:
        raise ConfigError(f"key {text!r} is not {key_format}: {e}") from e


_PARSERS: dict[str, Callable[[str], bytes]] = {
    "text": lambda text: text.encode("utf-8", "surrogateescape"),
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def read_keys(path: Path, key_format: str, column: str | None = None) -> list[bytes]:
    """The keys of a file: `.csv` and `.parquet` by a column, anything else one a line.

    A table's column is the one named "key", the only column of a Parquet file, or the column that
    `column` names: in a CSV file the first line may be names or a key, and a key that is taken for
    a name would not be searched for. Text is UTF-8; a byte order mark in front is left out, as are
    empty lines and nulls. Binary columns are taken as they are.

    Raises ConfigError, also for text that is not UTF-8, and StorageError.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in _TABLES:
            keys = _column_of_keys(path, suffix, key_format, column)
            return [key for key in keys if key is not None]
        text = _text_of(path).decode("utf-8", "surrogateescape")
    except OSError as e:
        raise unreadable(e, path) from e
    if column is not None:
        raise ConfigError(f"--key-column: {path} is no table; allowed are {', '.join(_TABLES)}")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for n, line in enumerate(lines, 1):
        if "\r" in line:
            raise ConfigError(f"{path}: line {n} has a carriage return in it; lines end with \\n")
    return [parse_key(line, key_format) for line in lines if line]


_TABLES = (".csv", ".parquet")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def _text_of(path: Path) -> bytes:
    """The bytes of a text file; text that is not UTF-8 would give keys that are in no log."""
    data = path.read_bytes()
    if data.startswith(_UTF_16_MARKS) or b"\0" in data:
        raise ConfigError(
            f"{path}: is UTF-16, or has NUL bytes; allowed is text in UTF-8 (--key-format hex or "
            "base64 for keys that are none)"
        )
    return data.removeprefix(_BYTE_ORDER_MARK)


def read_keys_by_topic(
    path: Path, key_format: str, column: str | None = None, topic_column: str = "topic"
) -> dict[str, list[bytes]]:
    """The keys of each topic, from a table with a column that names the topic; as `read_keys`."""
    suffix = path.suffix.lower()
    if suffix not in _TABLES:
        raise ConfigError(f"--topic: needed, for {path} is no table with a column of topics")
    try:
        keys = _column_of_keys(path, suffix, key_format, column, but=topic_column)
        _, _, topics = _values(path, suffix, topic_column)
    except OSError as e:
        raise unreadable(e, path) from e
    found: dict[str, list[bytes]] = {}
    for topic, key in zip(topics, keys, strict=True):
        if key is None:
            continue
        if not isinstance(topic, str) or not topic:
            raise ConfigError(f"{path}: a key has no topic in column {topic_column}")
        found.setdefault(topic, []).append(key)
    return found


def _column_of_keys(
    path: Path, suffix: str, key_format: str, column: str | None, but: str | None = None
) -> list[bytes | None]:
    """One key per row, None where the row has none."""
    name, kind, values = _values(path, suffix, column, but)
    keys: list[bytes | None] = []
    for value in values:
        if value in {None, "", b""}:
            keys.append(None)
        elif isinstance(value, str | bytes):
            keys.append(value if isinstance(value, bytes) else parse_key(value, key_format))
        else:
            raise ConfigError(f"{path}: column {name} has {kind}, not text or bytes")
    return keys


def _values(
    path: Path, suffix: str, column: str | None, but: str | None = None
) -> tuple[str, str, list[object]]:
    """The name, the type and the values of the keys' column; whole numbers as text."""
    # Arrow takes a tenth of a second to load, and most searches have their keys from options.
    with needed_for("a file of keys"):
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import csv, parquet  # noqa: PLC0415

    try:
        if suffix == ".csv":
            text, parse = pa.py_buffer(_text_of(path)), csv.ParseOptions(newlines_in_values=True)
            names = csv.open_csv(pa.BufferReader(text), parse_options=parse).schema.names
            name = _column_of(path, names, column or _usual(names, but, is_sure=but in names))
            # As text: "007" is no number here.
            options = csv.ConvertOptions(include_columns=[name], column_types={name: pa.string()})
            values = csv.read_csv(
                pa.BufferReader(text), parse_options=parse, convert_options=options
            )[name]
        else:
            names = parquet.read_schema(path).names
            name = _column_of(path, names, column or _usual(names, but, is_sure=True))
            values = parquet.read_table(path, columns=[name])[name]
    except pa.ArrowInvalid as e:
        raise StorageError(f"reading {path}: {e}") from e
    kind = str(values.type)
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    return name, kind, values.to_pylist()


def _usual(names: Sequence[str], but: str | None, *, is_sure: bool) -> str:
    """The column to use if no option names one; is_sure: that `names` are column names."""
    others = [name for name in names if name != but]
    return others[0] if is_sure and len(others) == 1 else "key"


def _column_of(path: Path, names: Sequence[str], column: str) -> str:
    if column not in names:
        raise ConfigError(
            f"{path}: no column {column!r} in its first line, or schema: {', '.join(names)}; "
            "--key-column names the one that has the keys"
        )
    if list(names).count(column) > 1:
        raise ConfigError(f"{path}: {names.count(column)} columns {column!r}")
    return column
