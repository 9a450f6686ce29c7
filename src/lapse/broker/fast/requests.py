"""Which requests the fast path looks at, and on whose behalf.

A client that has logged in may send them until its session ends. Large ones are copied and judged
in a thread, on the readable path. `lapse.fast.requests=false` leaves every request to that.
"""

from __future__ import annotations

from collections.abc import Awaitable

import numpy as np
from numpy.typing import NDArray

from lapse.base.clock import monotonic_ms
from lapse.broker.fast.fetch import FastFetch
from lapse.broker.fast.left_over import LeftOver
from lapse.broker.fast.produce import FastProduce
from lapse.broker.request.context import Services, Session
from lapse.wire.codec import Part
from lapse.wire.schema.fetch import FETCH
from lapse.wire.schema.produce import PRODUCE

# A frame, or its parts where it is long; empty where none is sent. Or what is to be awaited for it.
Answered = bytes | list[Part] | Awaitable[bytes | list[Part] | LeftOver]

FRAME_BYTES_MAX = 64 << 10
_KEY_BYTES = 2


class FastRequests:
    """For the connections of one listener."""

    def __init__(self, services: Services) -> None:
        self._clock = services.clock
        self._is_on = services.config.fast_requests
        self._by_key: dict[bytes, FastProduce | FastFetch] = {
            PRODUCE.key.to_bytes(_KEY_BYTES): FastProduce(services),
            FETCH.key.to_bytes(_KEY_BYTES): FastFetch(services),
        }

    def answer(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int, session: Session
    ) -> Answered | None:
        """What answers the request in buffer[start:end].

        None where the readable path is to answer it: then nothing has been done. `array` is the
        same memory as `buffer`, which may be written to. Raises CloseConnection.
        """
        handle = self._by_key.get(bytes(buffer[start : start + _KEY_BYTES]))
        if handle is None or not self._is_on or end - start > FRAME_BYTES_MAX:
            return None
        sasl = session.sasl
        if sasl is not None and not sasl.admits_all(monotonic_ms(self._clock)):
            return None
        return handle(buffer, array, start, end, session)
