"""How a service reaches an owner in another process.

By its control socket (`unix_socket`), or by a listener of its own (`kafka_channel`).

Blocking, for one thread. Messages are `owner.messages`.
"""

from __future__ import annotations

from typing import Protocol

from lapse.base.errors import CorruptData
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import Answer, Refused, Request, Welcome
from lapse.lifecycle.owner.protocol import OwnerGone, OwnerTaken


class Channel(Protocol):
    """Requests out, answers back, after a greeting.

    Each call raises OwnerGone, OSError or CorruptData where there is no answer; who calls closes
    the channel then, and may open it again.
    """

    @property
    def where(self) -> str:
        """Who is to answer, in words."""

    def open(self) -> Welcome:
        """Connect, and say Hello."""

    def ask(self, request: Request, wanted: type[messages.T]) -> messages.T:
        """One request and its answer."""

    def close(self) -> None:
        """The service goes; another one may come."""


def expected(answer: Answer, wanted: type[messages.T], where: str) -> messages.T:
    """The answer, if it is the one that belongs to the request.

    Raises OwnerTaken or OwnerGone where it is a refusal, CorruptData where it is another.
    """
    if isinstance(answer, Refused):
        kind = OwnerTaken if answer.taken else OwnerGone
        raise kind(f"{where} refused: {answer.reason}")
    if not isinstance(answer, wanted):
        raise CorruptData(where, 0, f"{type(answer).__name__} instead of {wanted.__name__}")
    return answer
