"""Whom the pages answer to: by host, and for changes by where the form was."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from lapse.web.guard import HEADERS, refusal


def request(method: str, **headers: str) -> Request:
    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Request({"type": "http", "method": method, "headers": raw})


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9093", "localhost:9093", "[::1]:9093", "127.1.2.3"]
)
def test_without_logins_this_machine_has_these_names(host: str) -> None:
    assert refusal(request("GET", host=host), "") is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:9093", "127.0.0.1.evil.example", "10.0.0.1", "[::1",
     "localhost.evil.example", "evil.example@127.0.0.1.nip.example", "2130706433"],
)  # fmt: skip
def test_any_other_may_be_one_that_was_pointed_here(host: str) -> None:
    refused = refusal(request("GET", host=host), "")
    assert refused is not None
    assert "lapse.http.login" in refused
    assert refusal(request("GET", host=host), "alice") is None


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "http://b:1"}, True),
        ({"origin": "http://b:1"}, True),
        ({}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://b:1"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"origin": "http://b:2"}, False),
        ({"origin": "http://evil"}, False),
        ({"origin": "null"}, False),
        ({"sec_fetch_site": "same-origin", "origin": "http://evil"}, False),
    ],
)
def test_a_change_comes_from_a_page_of_this_address(headers: dict[str, str], may: bool) -> None:
    assert (refusal(request("POST", host="b:1", **headers), "alice") is None) is may
    assert refusal(request("GET", host="b:1", **headers), "alice") is None


def test_no_page_is_framed_or_runs_what_is_not_ours() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert HEADERS["X-Frame-Options"] == "DENY"
