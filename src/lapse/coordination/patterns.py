"""Regular expressions that clients send: RE2's language, in linear time.

Kafka runs them with RE2/J, so that no pattern can hold a broker up; Python's `re` can be held up.
RE2 comes with Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence

from lapse.base.errors import ErrorCode, KafkaError


def full_matches(pattern: str, names: Sequence[str]) -> list[bool]:
    r"""Whether each of `names` matches `pattern` from beginning to end.

    Raises INVALID_REGULAR_EXPRESSION. The pattern is tried by itself first: `a)|(b` must not
    become one by the brackets that are put around it.
    """
    import pyarrow as pa  # noqa: PLC0415  (most brokers are never asked)
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        pc.match_substring_regex(pa.array([""]), pattern)
        found = pc.match_substring_regex(pa.array(names, pa.string()), rf"\A(?:{pattern})\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as e:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is no regular expression: {e}"
        ) from None
    matches: list[bool] = found.to_pylist()
    return matches
