"""What keeps other sites out of the pages: headers, the host that is asked for, where a form is.

- A page is framed by nobody, runs no script but ours, and loads nothing from elsewhere.
- Without logins a browser may be led here by a name that another site has pointed at this machine
  (DNS rebinding): then only this machine's own names are answered to. With logins a browser sends
  none to such a name.
- A form of another site cannot change anything: a POST must come from this very origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import Request

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none a form of our own would come from "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OWN_NAMES = frozenset({"localhost", "localhost.localdomain"})


def refusal(request: Request, user: str) -> str | None:
    """Why a request is not answered; None: it is."""
    host = request.headers.get("host", "")
    if not user and not _is_own(host):
        return (
            f"Host: {host!r} is no name of this machine. Without logins (lapse.http.login) the "
            "pages are at 127.0.0.1 or localhost"
        )
    if request.method == "POST" and not _is_same_origin(request, host):
        return "a change must come from a page of this very address"
    return None


def _is_own(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in _OWN_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_same_origin(request: Request, host: str) -> bool:
    """By what a browser says and no script can: `Sec-Fetch-Site`, and `Origin`."""
    site = request.headers.get("sec-fetch-site")
    if site not in {None, "same-origin"}:
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return site is not None
    return urlsplit(origin).netloc == host
