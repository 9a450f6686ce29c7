"""What a log notes of its own files, and strikes before they go."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.log.manifest import ManifestKeeper, read_manifest


@pytest.mark.parametrize(
    ("bases", "left"),
    [([40], {0: 500}), ([40, 80], {0: 500}), ([80], {0: 500, 40: 600}), ([0, 40], {})],
)
def test_what_is_about_to_go_is_struck_beside_what_was_never_listed(
    tmp_path: Path, bases: list[int], left: dict[int, int]
) -> None:
    keeper = ManifestKeeper(RealFs(), tmp_path, "era")
    keeper.note({0: 500, 40: 600}, 60)
    keeper.strike(bases)
    found = read_manifest(tmp_path)
    assert found is not None
    assert (found.sizes, found.end_offset) == (left, 60)
