"""A file of parts gives back what was put in, and notices every byte that is another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import RealFs
from lapse.lifecycle.round.split.parts import PartsReader, PartsReceipt, PartsWriter

PARTS = [(2, b"two"), (0, b"zero"), (2, b"and two"), (4, b""), (3, b"3")]


def written(path: Path, parts: list[tuple[int, bytes]] = PARTS, keys: int = 5) -> PartsReceipt:
    writer = PartsWriter(RealFs(), path, keys)
    for key, data in parts:
        writer.add(key, np.frombuffer(data, np.uint8))
    receipt = writer.finish()
    writer.close()
    return receipt


def read(
    path: Path, receipt: PartsReceipt, first: int = 0, after: int = -1
) -> dict[int, list[bytes]]:
    after = receipt.keys if after < 0 else after
    reader = PartsReader(path, receipt, first, after)
    return {key: [bytes(part) for part in reader.parts(key)] for key in range(first, after)}


def test_parts_come_back_by_key_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    receipt = written(tmp_path / "f")
    assert (receipt.parts, receipt.keys) == (4, 5)
    assert receipt.size == (tmp_path / "f").stat().st_size
    everything = {0: [b"zero"], 1: [], 2: [b"two", b"and two"], 3: [b"3"], 4: []}
    assert read(tmp_path / "f", receipt) == everything
    for first in range(5):
        for after in range(first, 6):
            some = {key: everything[key] for key in range(first, min(after, 5))}
            if after <= 5:
                assert read(tmp_path / "f", receipt, first, after) == some
    reader = PartsReader(tmp_path / "f", receipt, 0, receipt.keys)
    assert [bytes(p) for p in reader.parts(2, newest_first=True)] == [b"and two", b"two"]
    assert [reader.sizes(key) for key in range(5)] == [[4], [], [3, 7], [1], []]


def test_many_at_once(tmp_path: Path) -> None:
    writer = PartsWriter(RealFs(), tmp_path / "f", 4)
    data = np.frombuffer(b"aabbbd", np.uint8)
    edges = np.array([0, 2, 5, 5, 6], np.int64)
    for _ in range(2):
        writer.add_all(np.arange(4), edges, data)
    receipt = writer.finish()
    writer.close()
    found = read(tmp_path / "f", receipt)
    assert found == {0: [b"aa"] * 2, 1: [b"bbb"] * 2, 2: [], 3: [b"d"] * 2}


def test_a_file_without_any(tmp_path: Path) -> None:
    assert read(tmp_path / "f", written(tmp_path / "f", [], 2)) == {0: [], 1: []}
    assert read(tmp_path / "g", written(tmp_path / "g", [], 0)) == {}


def test_every_flipped_byte_is_noticed_by_whom_it_concerns(tmp_path: Path) -> None:
    receipt = written(tmp_path / "f")
    good = (tmp_path / "f").read_bytes()
    whole = read(tmp_path / "f", receipt)
    zero = {receipt.entries_at + 16 * key + n for key in range(5) for n in (12, 13, 14, 15)}
    first_of_none = {receipt.entries_at + 16 * key + n for key in (1, 4) for n in range(4)}
    for at in range(len(good)):
        for bit in (0x01, 0x80):
            bad = bytearray(good)
            bad[at] ^= bit
            (tmp_path / "f").write_bytes(bad)
            if at in zero | first_of_none:  # padding; and where nothing begins
                continue
            with pytest.raises(CorruptData):
                assert read(tmp_path / "f", receipt) != whole


def test_a_file_cut_short_and_one_that_is_gone(tmp_path: Path) -> None:
    receipt = written(tmp_path / "f")
    good = (tmp_path / "f").read_bytes()
    for size in range(len(good)):
        (tmp_path / "f").write_bytes(good[:size])
        with pytest.raises(CorruptData):
            read(tmp_path / "f", receipt)
    (tmp_path / "f").unlink()
    with pytest.raises(StorageError):
        read(tmp_path / "f", receipt)


def test_another_files_receipt(tmp_path: Path) -> None:
    receipt = written(tmp_path / "f")
    with pytest.raises(CorruptData):
        read(tmp_path / "f", replace(receipt, parts=1))
