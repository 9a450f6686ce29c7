"""A page that is asked for, and what it is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lapse.base.clock import Clock
from lapse.base.errors import LapseError
from lapse.base.typed import whole
from lapse.client.cluster import Cluster
from lapse.client.visitor import Visitor


class NotFound(LapseError):
    """There is no such thing to show."""


class BadQuestion(LapseError):
    """The address or a form says something that is not allowed; the text says what is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, by somebody whom brokers know."""

    request: Request
    visitor: Visitor
    cluster: Cluster
    clock: Clock
    form: Mapping[str, str] = field(default_factory=dict)

    def raw(self, name: str) -> str:
        """Of the address's query, as it is."""
        return self.request.query_params.get(name, "")

    def text(self, name: str, default: str = "") -> str:
        """Likewise, without spaces around it."""
        return self.request.query_params.get(name, default).strip()

    def whole(self, name: str, default: int, most: int) -> int:
        """A whole number of the address's query, from 0; raises BadQuestion."""
        text = self.text(name)
        if not text:
            return default
        found = whole(text)
        if found is None or found > most:
            raise BadQuestion(f"{name}={text}: allowed is a whole number from 0 to {most}")
        return found

    def said(self, name: str) -> str:
        """Of the form."""
        return self.form.get(name, "").strip()


@dataclass(frozen=True, slots=True)
class Page:
    """A template, and what it is given."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Download:
    """A file to keep; its name is plain, since it stands in a header."""

    name: str
    text: str
    media_type: str = "application/json"


Handler = Callable[[Asked], Awaitable[Page | Download]]
# Who somebody is, or the response that says why the pages are not for him.
Enter = Callable[[Request], Awaitable[Visitor | Response]]
