"""Many users are described in one pass over their credentials."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.api.describe_user_scram_credentials import handle
from lapse.broker.request.context import Services, Session
from lapse.security.scram import ScramCredential, ScramMechanism
from lapse.wire.schema.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

KEPT = ScramCredential(b"s", b"k", b"k", 4096)
USERS = 300


class Counted(dict[tuple[str, ScramMechanism], ScramCredential]):
    """Credentials, and how many of them were looked at in going over them."""

    looked_at = 0

    def items(self) -> Any:
        def each() -> Iterator[Any]:
            for item in super(Counted, self).items():
                self.looked_at += 1
                yield item

        return each()

    def __iter__(self) -> Iterator[tuple[str, ScramMechanism]]:
        for key in super().__iter__():
            self.looked_at += 1
            yield key


@pytest.mark.parametrize("names", [None, [f"user{n}" for n in range(USERS)]])
async def test_many_users_take_no_more_than_a_look_at_each(names: list[str] | None) -> None:
    """The event loop stood still for seconds with some thousands: for each, all were looked at."""
    credentials = Counted(
        {
            (f"user{n}", mechanism): KEPT
            for n in range(USERS)
            for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256)
        }
    )
    services = cast("Services", SimpleNamespace(access=SimpleNamespace(credentials=credentials)))
    asked = None if names is None else tuple(UserName(name=name) for name in names)
    answer = await handle(
        services, cast("Session", None), 0, DescribeUserScramCredentialsRequest(users=asked)
    )
    assert credentials.looked_at == 2 * USERS
    everybody = sorted(f"user{n}" for n in range(USERS))
    assert [one.user for one in answer.results] == (names or everybody)
    for one in answer.results:
        assert one.error_code == ErrorCode.NONE
        assert [(info.mechanism, info.iterations) for info in one.credential_infos] == [
            (1, 4096), (2, 4096),
        ]  # fmt: skip
