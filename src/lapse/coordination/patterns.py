"""Regular expressions that clients send: RE2's language, in linear time.

Kafka runs them with RE2/J, so that no pattern can hold a broker up; Python's `re` can be held up.
"""

from __future__ import annotations

from collections.abc import Sequence

from lapse.base.errors import ErrorCode, KafkaError


def full_matches(pattern: str, names: Sequence[str]) -> list[bool]:
    r"""Whether each of `names` matches `pattern` from beginning to end.

    Raises INVALID_REGULAR_EXPRESSION. The pattern is tried by itself first: `a)|(b` must not
    become one by the brackets that are put around it.
    """
    import re2  # noqa: PLC0415  (most brokers never need it)

    options = re2.Options()
    options.log_errors = False  # to standard error
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as e:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is no regular expression: {e}"
        ) from None
    return [compiled.fullmatch(name) is not None for name in names]
