"""A string that nothing prints by accident: passwords, private keys, JAAS options.

Logs, error messages, `repr` of whatever holds it, JSON and pickles get `[hidden]` (Kafka's word,
of its `Password` type) or a TypeError, never the value. Only `reveal()` gives it, so a search for
that word finds every place where a secret leaves its box (and `octets()`, for `base/fs` alone).

Not a `str`: JSON encoders write a subclass of `str` as it is.
"""

from __future__ import annotations

import hmac
from typing import Any, NoReturn, final

HIDDEN = "[hidden]"


@final
class Secret:
    """A value to be used and not shown. Equal to a `Secret` of the same value, and to no `str`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself; hand it to what needs it and keep it nowhere."""
        return self._value

    def octets(self) -> bytes:
        """Likewise as UTF-8, for a file that its owner alone may read: `base/fs` writes it so."""
        return _octets(self._value)

    def matches(self, text: str) -> bool:
        """Whether the value is `text`, in a time that does not tell where they differ."""
        return hmac.compare_digest(_octets(self._value), _octets(text))

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled: it would lie open in a file or another process")


def _octets(text: str) -> bytes:
    """UTF-8; a lone surrogate, which no client can send, is an octet like any other."""
    return text.encode("utf-8", "surrogatepass")
