"""One HTTP attempt: bounded in time and size, without redirects, to allowed addresses only."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import httpx

from pipeline.alerts.schedule import read_retry_after

_MAX_ANSWER_BYTES = 2000
# The receiver, or something before it, asks for less.
_SLOW_DOWN = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    """What came of an attempt.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        error: what went wrong, empty when it was taken; without secrets.
        retry_after: what the receiver asked for.
        took_ms: how long it took.
        ours: nothing was sent, for a reason on our side.
    """

    status: int
    error: str = ""
    retry_after: timedelta | None = None
    took_ms: int = 0
    ours: bool = False

    @property
    def delivered(self) -> bool:
        """Only 2xx means that it was taken."""
        return 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """The receiver wants no more messages."""
        return self.status == 410

    @property
    def slow_down(self) -> bool:
        """Not only this message, but all to this receiver should wait."""
        return self.status in _SLOW_DOWN or (self.status == 0 and not self.ours)


class _ForbiddenAddressError(Exception):
    pass


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    allow_private: bool,
    now: datetime,
) -> Answer:
    """Send once; never raises for what the other side does.

    Args:
        timeout_s: for everything together, however slowly the receiver drips its answer.
        allow_private: see :class:`~pipeline.alerts.destinations.Destination`.
        now: for a ``Retry-After`` that is a date.
    """
    started = time.monotonic()
    try:
        answer = asyncio.run(_bounded(url, body, headers, timeout_s, allow_private))
    except TimeoutError:
        answer = httpx.Response(0, text=f"no answer within {timeout_s:g} s")
    except _ForbiddenAddressError as exc:
        answer = httpx.Response(0, text=str(exc))
    except (httpx.HTTPError, OSError, UnicodeError, ValueError) as exc:
        # Texts of such errors may hold the address, and an address may be a secret.
        answer = httpx.Response(0, text=_kind(exc))
    took = int((time.monotonic() - started) * 1000)
    status = answer.status_code
    error = ""
    if not 200 <= status < 300:
        said = "".join(c if c.isprintable() else " " for c in answer.text)
        said = " ".join(said.split())[:200]
        error = said if status == 0 else f"HTTP {status} {said}".strip()
        if 300 <= status < 400:
            error = f"HTTP {status}: redirects are not followed, give the final address"
    return Answer(status, error, read_retry_after(answer.headers.get("retry-after"), now), took)


def _kind(exc: Exception) -> str:
    if isinstance(exc, httpx.ConnectError):
        return "no connection: nothing listens there, or the name is not known"
    if isinstance(exc, httpx.RemoteProtocolError):
        return "the connection was closed without an answer"
    return f"no answer ({type(exc).__name__})"


async def _bounded(
    url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, allow_private: bool
) -> httpx.Response:
    async with asyncio.timeout(timeout_s):
        parts = urlsplit(url)
        assert parts.hostname is not None
        address = await _resolve(parts.hostname, parts.port or _port(parts.scheme), allow_private)
        target = httpx.URL(url)
        extensions: dict[str, str] = {}
        sent = {"content-type": "application/json", "user-agent": "rackpulse", **headers}
        local = ipaddress.ip_address(address).is_loopback
        if not allow_private:
            # Call the very address that was checked: a second look-up could give another.
            sent["host"] = target.netloc.decode("ascii")
            extensions["sni_hostname"] = parts.hostname
            target = target.copy_with(host=address)
        async with (
            httpx.AsyncClient(
                timeout=timeout_s,
                follow_redirects=False,
                # A proxy knows nothing of this machine, and would hide what was checked.
                trust_env=allow_private and not local,
            ) as client,
            client.stream(
                "POST", target, content=body, headers=sent, extensions=extensions
            ) as answer,
        ):
            text = b""
            # Undecoded: a small compressed answer can unpack to a very large one.
            async for piece in answer.aiter_raw():
                text += piece
                if len(text) >= _MAX_ANSWER_BYTES:
                    break
            plain = text[:_MAX_ANSWER_BYTES] if "content-encoding" not in answer.headers else b""
            return httpx.Response(
                answer.status_code,
                headers={
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() == "retry-after"
                },
                content=plain,
            )


def _port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


async def _resolve(host: str, port: int, allow_private: bool) -> str:
    """An address of the host that may be called.

    Raises:
        _ForbiddenAddressError: one of its addresses may not.
        OSError: the name is not known.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(item[4][0]).split("%")[0]) for item in found]
    for address in addresses:
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
            raise _ForbiddenAddressError("this address may not be called: it is link-local")
        if not allow_private and not mapped.is_global:
            raise _ForbiddenAddressError(
                "this address may not be called: it is not public (allow_private = true permits it)"
            )
    return str(addresses[0])
