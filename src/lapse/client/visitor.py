"""Who looks at pages: brokers are asked as this user, so its rights are those that it has there."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.login import Login


@dataclass(frozen=True, slots=True)
class Visitor:
    """One, for as long as a request.

    Attributes:
        bootstrap: HOST:PORT of a broker's listener.
        login: how to come in there.
        user: "" where nobody logs in.
        may_change: whether it may ask for changes at all; what it may change, brokers say.
    """

    bootstrap: str
    login: Login
    user: str = ""
    may_change: bool = False

    def cluster(self) -> Cluster:
        """Connections of its own; an async context manager."""
        return Cluster(parse_bootstrap(self.bootstrap), self.login)
