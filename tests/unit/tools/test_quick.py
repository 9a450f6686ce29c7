"""Which tests `make quick` runs for what changed."""

from __future__ import annotations

import pytest

from tools.quick import mirrored

TESTS = [
    "tests/unit/log/test_segment.py",
    "tests/unit/log/test_segment_torn.py",
    "tests/unit/log/test_segments.py",
    "tests/unit/lifecycle/round/test_split.py",
    "tests/unit/lifecycle/round/split/test_merge.py",
    "tests/unit/tools/test_tidy.py",
    "tests/property/test_log.py",
    "tests/crash/test_log.py",
]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/lapse/log/segment.py", TESTS[:2]),
        ("src/lapse/lifecycle/round/split/merge.py", [TESTS[4], TESTS[3]]),
        ("src/lapse/lifecycle/round/split/__init__.py", [TESTS[3]]),
        ("tools/tidy.py", [TESTS[5]]),
        ("tests/property/test_log.py", [TESTS[6]]),
        ("tests/crash/test_log.py", []),  # not quick
        ("tests/support/log/logs.py", []),
        ("README.md", []),
        ("src/lapse/gone.py", []),
    ],
)
def test_a_change_has_its_tests(changed: str, expected: list[str]) -> None:
    assert mirrored([changed], TESTS) == expected
