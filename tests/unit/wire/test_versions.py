"""What is advertised, and the quirks."""

from __future__ import annotations

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ForeignResponse
from kio.serial import entity_reader

from lapse.base.errors import ErrorCode
from lapse.wire import codec
from lapse.wire.schema.api_versions import ApiVersionsResponse
from lapse.wire.versions import (
    FALLBACK_VERSION,
    SERVED,
    advertised,
    request_header_version,
    response_header_version,
    too_new,
)

ADVERTISED = {
    "Produce": (0, 0, 11),
    "Fetch": (1, 4, 17),
    "ListOffsets": (2, 1, 10),
    "Metadata": (3, 0, 13),
    "FindCoordinator": (10, 0, 6),
    "ApiVersions": (18, 0, 4),
    "CreateTopics": (19, 2, 7),
    "DeleteTopics": (20, 1, 6),
    "InitProducerId": (22, 0, 4),
}
FIRST_FLEXIBLE = {0: 9, 1: 12, 2: 6, 3: 9, 10: 3, 18: 3, 19: 5, 20: 4, 22: 2}


def test_the_table() -> None:
    rows = [(row.api_key, row.min_version, row.max_version) for row in advertised()]
    assert rows == sorted(ADVERTISED.values())
    assert {row.api.name: row.api.key for row in SERVED.values()} == {
        name: key for name, (key, _, _) in ADVERTISED.items()
    }


def test_only_produce_advertises_what_it_does_not_serve() -> None:
    """Quirk 1: from 0, though 3 is the oldest served."""
    differs = {k for k, row in SERVED.items() if row.advertised_min != row.api.versions.low}
    assert differs == {0}
    assert SERVED[0].api.versions.low == 3


def test_no_row_is_upside_down() -> None:
    """Quirk 4: aiokafka cannot connect to a broker with one."""
    assert all(0 <= row.min_version <= row.max_version for row in advertised())


@pytest.mark.parametrize("key", SERVED)
def test_header_versions(key: int) -> None:
    api, first = SERVED[key].api, FIRST_FLEXIBLE[key]
    assert [request_header_version(api, v) for v in (0, first - 1, first, first + 1)] == [
        1,
        1,
        2,
        2,
    ]
    # Quirk 3: ApiVersions never has the flexible response header.
    flexible = 0 if key == 18 else 1
    assert response_header_version(api, first - 1) == 0
    assert response_header_version(api, first) == flexible
    assert request_header_version(api, 99) == 2  # a client newer than we are


def test_a_request_too_new_is_answered_in_version_0_with_the_table() -> None:
    """Quirk 2, read by somebody else's code."""
    data = codec.encode(too_new(), FALLBACK_VERSION)
    assert codec.decode(ApiVersionsResponse, 0, memoryview(data))[0].api_keys == advertised()
    foreign, _ = entity_reader(ForeignResponse)(data, 0)
    assert foreign.error_code.value == ErrorCode.UNSUPPORTED_VERSION == 35
    assert (18, 0, 4) in [(r.api_key, r.min_version, r.max_version) for r in foreign.api_keys]
