"""After it, nothing is compiled any more."""

from __future__ import annotations

from pathlib import Path

from lapse.kernels import find_key
from lapse.lifecycle.erase.warm_up import warm_up
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.support.lifecycle.erase.replica import FIRST, KEY, batch, damaged, found_in, written


def test_a_search_finds_its_kernels_there(tmp_path: Path) -> None:
    kernels = (
        find_key.fill_table, find_key.find_keys, find_key.find_keys_in_place,
        find_key.find_keys_in_rows, find_key.find_raw,
        find_key.next_candidate,
    )  # fmt: skip
    warm_up()
    before = [len(kernel.signatures) for kernel in kernels]  # type: ignore[attr-defined]
    old = build_messages([Message(9, 5, KEY, b"v")], MessageSpec(1, Codec.GZIP))
    path = written(tmp_path / FIRST, batch(0, KEY, codec=Codec.ZSTD), old, damaged(batch(1, KEY)))
    assert found_in(path).counts[0].records == 3
    assert [len(kernel.signatures) for kernel in kernels] == before  # type: ignore[attr-defined]
