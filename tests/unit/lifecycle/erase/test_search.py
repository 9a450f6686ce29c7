"""What is searched for, as options and files give it and as reports name it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from lapse.base.errors import ConfigError, StorageError
from lapse.lifecycle.erase.search import (
    Search,
    hash_of,
    make_search,
    parse_key,
    read_keys,
    read_keys_by_topic,
    recalled,
    spec_of,
)

SALT = "00ff"


def test_keys_are_distinct_and_offsets_ascend() -> None:
    search = make_search([b"b", b"a", b"b"], [7, 3, 7])
    assert search == Search((b"b", b"a"), (3, 7))
    assert search.targets == 4


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"keys": []}, "nothing to look for"),
        ({"keys": [b"a", b""]}, "at least one byte"),
        ({"keys": [], "offsets": [-1]}, "offset -1"),
        ({"keys": [b"a"], "below_offset": -5}, "offset -5"),
        ({"keys": [], "offsets": [1], "below_offset": 5}, "--below-offset"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(asked: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_search(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "key_format", "key"),
    [
        ("größe", "text", "größe".encode()),
        ("00ff07", "hex", b"\0\xff\7"),
        ("AP8H", "base64", b"\0\xff\7"),
    ],
)
def test_keys_are_written_in_three_ways(text: str, key_format: str, key: bytes) -> None:
    assert parse_key(text, key_format) == key


@pytest.mark.parametrize(("text", "key_format"), [("0g", "hex"), ("*", "base64"), ("A", "base64")])
def test_a_key_that_is_not_in_its_format_is_refused(text: str, key_format: str) -> None:
    with pytest.raises(ConfigError, match=key_format):
        parse_key(text, key_format)


def test_a_file_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"one\r\n\n two \nthree")
    assert read_keys(path, "text") == [b"one", b" two ", b"three"]
    with pytest.raises(ConfigError, match="no table"):
        read_keys(path, "text", "key")
    with pytest.raises(StorageError, match="missing"):
        read_keys(tmp_path / "missing", "text")


def test_a_csv_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("id,key\n1,007\n2,\n3,42\n")
    assert read_keys(path, "text") == [b"007", b"42"]  # no number is made of 007
    assert read_keys(path, "text", "id") == [b"1", b"2", b"3"]
    with pytest.raises(ConfigError, match="id, key"):
        read_keys(path, "text", "name")
    path.write_text("key\n0a\n")
    assert read_keys(path, "hex") == [b"\n"]
    path.write_text('key\n"a ""b"""\n"two\nlines"\nNA\n')
    assert read_keys(path, "text") == [b'a "b"', b"two\nlines", b"NA"]
    path.write_text("")
    with pytest.raises(StorageError, match="reading"):
        read_keys(path, "text")
    rows = [f"{'x' * 90}\n{n:07d}" for n in range(11_000)]  # more than a block of Arrow's
    path.write_text("key\n" + "".join(f'"{row}"\n' for row in rows))
    assert read_keys(path, "text") == [row.encode() for row in rows]


@pytest.mark.parametrize("text", ["u-1\nu-2\n", "key;mail\nu-1;a@b\n", "Key\nu-1\n"])
def test_no_key_is_taken_for_the_name_of_a_column(text: str, tmp_path: Path) -> None:
    """A CSV of one column had any first line left out."""
    path = tmp_path / "keys.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"no column 'key' in its first line.*--key-column"):
        read_keys(path, "text")
    path.write_text("user\nu-1\n")
    assert read_keys(path, "text", "user") == [b"u-1"]
    path.write_text("key,key\nu-1,u-2\n")
    with pytest.raises(ConfigError, match="2 columns 'key'"):
        read_keys(path, "text")


@pytest.mark.parametrize("name", ["keys", "keys.csv"])
def test_a_byte_order_mark_is_no_part_of_a_key(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    head = "key\n" if name.endswith(".csv") else ""
    path.write_text(f"{head}u-1\nu-2\n", "utf-8-sig")
    assert read_keys(path, "text") == [b"u-1", b"u-2"]
    path.write_text(f"{head}00ff\n", "utf-8-sig")
    assert read_keys(path, "hex") == [b"\0\xff"]


@pytest.mark.parametrize("name", ["keys", "keys.csv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_text_that_is_not_utf_8_is_refused(name: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for text in ("key\r\nu-1\r\n", "鍵\n甲\n"):
        path.write_text(text, encoding)
        with pytest.raises(ConfigError, match="UTF-16, or has NUL bytes"):
            read_keys(path, "text")
    path.write_text("甲", "utf-16")  # without a line's end, no byte of it is 0
    with pytest.raises(ConfigError, match="UTF-16"):
        read_keys(path, "text")


def test_lines_that_end_as_on_an_old_mac_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"u-0\nu-1\ru-2\r")
    with pytest.raises(ConfigError, match="line 2 has a carriage return"):
        read_keys(path, "text")


def test_a_parquet_file_as_bytes_text_or_numbers(tmp_path: Path) -> None:
    path = tmp_path / "keys.parquet"
    table = pa.table({
        "key": pa.array([b"\0\1", None], pa.binary()), "name": ["0a", "0b"], "id": [1, 2],
        "weight": [0.5, 1.5],
    })  # fmt: skip
    parquet.write_table(table, path)
    assert read_keys(path, "hex") == [b"\0\1"]  # bytes are what they are
    assert read_keys(path, "hex", "name") == [b"\n", b"\x0b"]
    assert read_keys(path, "text", "id") == [b"1", b"2"]
    with pytest.raises(ConfigError, match="weight has double"):
        read_keys(path, "text", "weight")
    parquet.write_table(table.select(["name"]), path)
    assert read_keys(path, "text") == [b"0a", b"0b"]  # its names are no rows: the only one is meant


def test_keys_of_several_topics(tmp_path: Path) -> None:
    path = tmp_path / "gone.csv"
    path.write_text("topic,user\na,007\nb,1\na,2\n,\n")
    assert read_keys_by_topic(path, "text") == {"a": [b"007", b"2"], "b": [b"1"]}
    assert read_keys_by_topic(path, "text", "topic", "user")["007"] == [b"a"]
    with pytest.raises(ConfigError, match="topic, user"):
        read_keys_by_topic(path, "text", "user", "where")
    path.write_text("topic,user,when\na,1,2\n")
    with pytest.raises(ConfigError, match="no column 'key'"):
        read_keys_by_topic(path, "text")
    path.write_text("topic,key\n,1\n")
    with pytest.raises(ConfigError, match="a key has no topic in column topic"):
        read_keys_by_topic(path, "text")
    with pytest.raises(StorageError, match="missing"):
        read_keys_by_topic(tmp_path / "missing.csv", "text")
    with pytest.raises(ConfigError, match="no table"):
        read_keys_by_topic(tmp_path / "lines", "text")
    table = pa.table({"topic": ["a", "b"], "key": pa.array([b"\0", None], pa.binary())})
    parquet.write_table(table, tmp_path / "gone.parquet")
    assert read_keys_by_topic(tmp_path / "gone.parquet", "hex") == {"a": [b"\0"]}


def test_a_report_tells_no_key_and_whoever_knows_it_can_tell() -> None:
    search = make_search([b"first", b"second"], below_offset=5, tombstones_too=True)
    asked = spec_of(search, SALT)
    assert asked.keys[0].sha256 == hashlib.sha256(b"00fffirst").hexdigest()
    assert hash_of(b"first", "other").sha256 != asked.keys[0].sha256
    assert "first" not in repr(asked)
    assert recalled(asked, [b"second", b"more", b"first"]) == search
    assert recalled(asked, [b"second"]) is None
