"""A client that is refused again and again does not fill the log."""

from __future__ import annotations

from lapse.broker.limits.log_lines import (
    IN_ALL_MAX,
    KINDS_MAX,
    OF_KIND_MAX,
    WINDOW_MS,
    LogLines,
)


def test_an_address_gets_some_lines_a_minute_and_the_rest_is_counted() -> None:
    lines = LogLines()
    said = [lines.ending("10.0.0.1", f"{n} bytes of 'me-{n}'", n) for n in range(1000)]
    assert said == [""] * OF_KIND_MAX + [None] * (1000 - OF_KIND_MAX)
    assert lines.ending("10.0.0.2", "3 bytes of 'you'", 1000) == ""
    assert lines.ending("::ffff:10.0.0.1", "1 bytes of 'it\\'s'", WINDOW_MS - 1) is None
    left_out = 1000 - OF_KIND_MAX + 1
    assert (
        lines.ending("10.0.0.1", "-7 bytes of ''", WINDOW_MS)
        == f" ({left_out} more like this before)"
    )
    assert lines.ending("10.0.0.1", "7 bytes of ''", WINDOW_MS + 1) == ""


def test_one_kind_takes_no_line_of_another() -> None:
    lines = LogLines()
    for _ in range(100):
        lines.ending("10.0.0.1", "Fetch v18 is not served", 0)
    assert lines.ending("10.0.0.1", "frame announces -1 bytes", 0) == ""


def test_all_together_get_some_and_few_are_remembered() -> None:
    lines = LogLines()
    said = [lines.ending(f"10.0.{n // 256}.{n % 256}", "x", 0) for n in range(3 * KINDS_MAX)]
    assert said == [""] * IN_ALL_MAX + [None] * (3 * KINDS_MAX - IN_ALL_MAX)
    assert len(lines._by_kind) == KINDS_MAX
    assert lines.ending("10.0.0.1", "x", WINDOW_MS) == ""
