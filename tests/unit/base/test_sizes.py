"""Sizes in words."""

from __future__ import annotations

import pytest

from lapse.base.sizes import size_text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"),
        (5 << 40, "5.0 TiB"), (1 << 62, "4096.0 PiB"), (-2048, "-2.0 KiB"),
    ],
)  # fmt: skip
def test_the_largest_unit_that_there_is_one_of(n_bytes: int, text: str) -> None:
    assert size_text(n_bytes) == text
