"""Who may talk to the store: Host and Origin of this machine, and a password."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pipeline.store.local import Role, Users
from pipeline.store.server.failure import StoreError

_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def local_host(header: str | None, port: int) -> bool:
    """Whether a Host header names this machine, so that no foreign name leads here."""
    if header is None:
        return False
    name, colon, digits = header.rpartition(":")
    if not colon or header.endswith("]"):
        return header.lower() in _LOCAL_NAMES
    return name.lower() in _LOCAL_NAMES and digits == str(port)


def local_origin(header: str | None, port: int) -> bool:
    """Whether a request comes from no web page, or from one of this very server."""
    if header is None:
        return True
    parts = urlsplit(header)
    return parts.scheme == "http" and local_host(parts.netloc, port)


def check_source(headers: Mapping[str, str], port: int) -> None:
    """Refuse foreign names of this machine, web pages, and requests of two lengths.

    Raises:
        StoreError: 497, or 36 for a body whose end could be read in two ways.
    """
    if "transfer-encoding" in headers and "content-length" in headers:
        raise StoreError(36, "Content-Length and Transfer-Encoding together are not accepted")
    if not local_host(headers.get("host"), port):
        raise StoreError(497, "This store answers to 127.0.0.1 and localhost only")
    if not local_origin(headers.get("origin"), port):
        raise StoreError(497, "This store does not answer to web pages")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise StoreError(497, "This store does not answer to web pages")


def authenticate(
    users: Users, headers: Mapping[str, str], pairs: Iterable[tuple[str, str]]
) -> Role:
    """The role of the one who asks.

    Args:
        pairs: parameters of the URL.

    Raises:
        StoreError: 516, whatever part was wrong.
    """
    user, password = _credentials(headers, dict(reversed(list(pairs))))
    found: Role | None = None
    for role, login in (("owner", users.owner), ("analyst", users.analyst)):
        same_user = hmac.compare_digest(user.encode(), login.user.encode())
        same_password = hmac.compare_digest(password.encode(), login.password.encode())
        if same_user and same_password:
            found = "owner" if role == "owner" else "analyst"
    if found is None:
        raise StoreError(
            516,
            f"{user[:64]}: Authentication failed: password is incorrect, or there is no user"
            " with such name",
        )
    return found


def _credentials(headers: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, str]:
    authorization = headers.get("authorization", "")
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            text = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return "", ""
        user, _, password = text.partition(":")
        return user, password
    if "x-clickhouse-user" in headers or "x-clickhouse-key" in headers:
        return headers.get("x-clickhouse-user", ""), headers.get("x-clickhouse-key", "")
    return own.get("user", ""), own.get("password", "")
