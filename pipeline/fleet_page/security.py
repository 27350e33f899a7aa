"""Guards of the page: a token against forged requests, and headers for the browser."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from urllib.parse import urlsplit

# Only our own files run and only this server is asked; only Airflow's own pages embed it.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


def csrf_token(key: str, user: str, now: datetime) -> str:
    """A token that only a page of this server can read, good for this user and day."""
    return _token(key, user, now.strftime("%Y-%m-%d"))


def is_csrf_token(given: str | None, key: str, user: str, now: datetime) -> bool:
    """Whether this is the user's token of today, or of the day that ended an hour ago."""
    if not given:
        return False
    days = {now.strftime("%Y-%m-%d"), datetime.fromtimestamp(now.timestamp() - 3600, now.tzinfo)
            .strftime("%Y-%m-%d")}  # fmt: skip
    return any(hmac.compare_digest(_token(key, user, day), given) for day in days)


def _token(key: str, user: str, day: str) -> str:
    text = f"rackpulse-csrf\0{user}\0{day}".encode()
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()


def is_same_origin(origin: str | None, fetch_site: str | None, host: str | None) -> bool:
    """Whether a browser says that the request comes from one of our own pages.

    Requests of other programs carry neither header; they are told apart by the token.
    """
    if fetch_site is not None and fetch_site not in ("same-origin", "none"):
        return False
    return origin is None or (host is not None and urlsplit(origin).netloc == host)
