"""LifecycleControl (key 10002): a lifecycle service on another machine. Ours, not Kafka's.

v0 flexible. No ApiVersions answer has it, as DescribeOutlook.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BYTES,
    INT16,
    INT32,
    OWN_KEYS_FROM,
    STRING,
    api,
    field,
    request,
    response,
)

LIFECYCLE_CONTROL = api(OWN_KEYS_FROM + 2, "LifecycleControl", versions="0", flexible="0+")


@request(LIFECYCLE_CONTROL)
class LifecycleControlRequest:
    """A message to the owner of logs (`lifecycle.owner.messages`), without its length.

    `lease`: from the answer to Hello; what Hello itself names does not count.
    """

    lease: str = field(STRING, default="")
    message: bytes = field(BYTES)


@response(LIFECYCLE_CONTROL)
class LifecycleControlResponse:
    """The owner's answer, without its length; empty with an error."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    message: bytes = field(BYTES, default=b"")
