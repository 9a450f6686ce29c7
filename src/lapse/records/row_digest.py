"""What some records are, in a few characters: to see whether rows that come again are the same."""

from __future__ import annotations

import hashlib

import numpy as np

from lapse.kernels.digest import LAST_BYTES, digest_records
from lapse.kernels.jit import first_compile
from lapse.records.batch_writer import Bytes, RecordFields, no_headers


class RowDigest:
    """Grows with records; neither their order nor their batches matter.

    Attributes:
        rows: how many there were.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._words = np.zeros(2, np.uint64)
        self._room = np.zeros(LAST_BYTES, np.uint8)

    def add(self, fields: RecordFields, topic: str) -> None:
        """Records of a topic."""
        name = hashlib.blake2b(topic.encode(), digest_size=16).digest()
        seeds = np.frombuffer(name, np.int64).tolist()
        sound = digest_records(
            fields.keys, fields.values, fields.headers, fields.times, fields.tombstones,
            (seeds[0], seeds[1]), self._room, self._words,
        )  # fmt: skip
        assert sound, "fields lie in their bytes"
        self.rows += len(fields)

    def __str__(self) -> str:
        return f"{self._words[0]:016x}{self._words[1]:016x}"


def warm_up() -> None:
    """Compile or load the kernel, once on this machine under a lock."""
    fields = RecordFields(
        Bytes.of([b"k"]), Bytes.of([None]), no_headers(1), np.zeros(1, np.int64),
        np.zeros(1, np.bool_),
    )  # fmt: skip
    with first_compile("row-digest"):
        RowDigest().add(fields, "warm-up")
