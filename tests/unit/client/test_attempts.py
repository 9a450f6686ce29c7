"""A call that fails a few times, for ever, or for good."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.client.attempts import tried
from lapse.client.connection import ConnectionLost
from lapse.client.producer import ProducerConfig

BRIEF = ProducerConfig(max_block_ms=200, retry_backoff_ms=1, retry_backoff_max_ms=5)
LOST = ConnectionLost("gone", sent=False)
NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader")
REFUSED = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "no name")


class Call:
    """Fails by these errors, and then is done; the last one is for ever where it says so."""

    def __init__(self, *errors: Exception, for_ever: bool = False) -> None:
        self.errors, self.for_ever, self.made = list(errors), for_ever, 0

    async def __call__(self) -> str:
        self.made += 1
        if not self.errors:
            return "done"
        raise self.errors[0] if self.for_ever else self.errors.pop(0)


async def test_a_call_is_made_until_it_is_done() -> None:
    call = Call(LOST, NO_LEADER, LOST)
    assert await tried(call, BRIEF) == "done"
    assert call.made == 4


async def test_the_last_error_is_the_end() -> None:
    call = Call(LOST, for_ever=True)
    with pytest.raises(ConnectionLost, match="gone"):
        await tried(call, BRIEF)
    assert call.made > 10


@pytest.mark.parametrize("error", [REFUSED, ValueError("no call")])
async def test_what_another_attempt_does_not_help_against(error: Exception) -> None:
    call = Call(LOST, error)
    with pytest.raises(type(error), match="no "):
        await tried(call, BRIEF)
    assert call.made == 2


async def test_who_calls_may_say_what_helps() -> None:
    assert await tried(Call(REFUSED), BRIEF, lambda e: e is REFUSED) == "done"
    with pytest.raises(ConnectionLost):
        await tried(Call(LOST), BRIEF, lambda e: e is REFUSED)
