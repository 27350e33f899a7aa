"""Getting the bytes of a target: a page over HTTP, a controller's tree, a file."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import httpx

from pipeline.clock import Clock
from pipeline.collectors.redfish.walk import Credentials, Walker, WalkError
from pipeline.collectors.targets import Target, read_credentials
from pipeline.errors import ConfigError, RackpulseError

log = logging.getLogger("rackpulse.collect")
MAX_PAGE_BYTES = 64_000_000
USER_AGENT = "rackpulse"
# A connection is kept from one read to the next: a new one costs as much as the page.
KEEP_INTERVALS = 2.5


class FetchError(Exception):
    """A target could not be read this time.

    Args:
        reason: short, stable word: ``timed_out``, ``refused``, ``http_500``, ``truncated``, …
        detail: text for a person.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came.

    Attributes:
        content_type: as the server says.
    """

    body: bytes
    content_type: str | None = None


class Fetcher(Protocol):
    """Reads one target, again and again."""

    async def fetch(self) -> Fetched:
        """Read it once.

        Raises:
            FetchError: it could not be read.
        """
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


class _TlsContexts:
    """One TLS context per file of certificates: making one takes tens of milliseconds."""

    def __init__(self) -> None:
        self._made: dict[Path | None, ssl.SSLContext] = {}

    def get(self, ca_file: Path | None) -> ssl.SSLContext:
        if ca_file not in self._made:
            try:
                self._made[ca_file] = ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as exc:
                raise ConfigError(f"{ca_file} holds no certificates: {exc}") from exc
        return self._made[ca_file]


class LateFetcher:
    """Makes a target's fetcher at the first read, and again until its files are right.

    A target that is configured wrongly is a sick one like others: named, and tried again.
    """

    def __init__(self, target: Target, make: Callable[[Target], Fetcher]) -> None:
        self._target = target
        self._make = make
        self._made: Fetcher | None = None
        self._said = ""

    async def fetch(self) -> Fetched:
        """Read it once.

        Raises:
            FetchError: it could not be read; ``misconfigured`` where a file of it is wrong.
        """
        if self._made is None:
            try:
                self._made = self._make(self._target)
            except ConfigError as exc:
                if str(exc) != self._said:
                    self._said = str(exc)
                    log.error("target %s cannot be read: %s", self._target.name, exc)
                raise FetchError("misconfigured", str(exc)) from exc
        return await self._made.fetch()

    async def close(self) -> None:
        """Give back what is held."""
        if self._made is not None:
            await self._made.close()


class FetcherFactory:
    """Makes the fetchers of one collector.

    Every target has a client of its own: a shared connection pool looks through all its
    connections at every request, which is too slow for a thousand of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tls = _TlsContexts()

    def make(self, target: Target) -> Fetcher:
        """The fetcher of a target.

        Raises:
            ConfigError: a file that the target names is wrong.
        """
        if target.path is not None:
            return FileFetcher(target)
        if target.url is None:
            return HostFetcher(target)
        assert target.url is not None
        if target.url.startswith("mqtt"):
            from pipeline.collectors.mqtt import MqttFetcher

            tls = self._tls.get(target.ca_file) if target.url.startswith("mqtts") else None
            return MqttFetcher(target, self._clock, tls)
        http = httpx.AsyncClient(
            verify=self._tls.get(target.ca_file),
            timeout=target.timeout_s,
            limits=httpx.Limits(
                max_connections=8,
                max_keepalive_connections=4,
                keepalive_expiry=target.interval_s * KEEP_INTERVALS,
            ),
            follow_redirects=False,
            trust_env=False,
            headers={"User-Agent": USER_AGENT},
        )
        if target.kind == "redfish":
            credentials = None
            if target.credentials_file is not None:
                credentials = Credentials(*read_credentials(target.credentials_file))
            walker = Walker(
                http, target.url, clock=self._clock, manager_id=target.manager_id,
                credentials=credentials, timeout_s=target.timeout_s,
            )  # fmt: skip
            return RedfishFetcher(http, walker)
        return HttpFetcher(http, target.url, target.timeout_s)


class HttpFetcher:
    """A page over HTTP."""

    def __init__(self, http: httpx.AsyncClient, url: str, timeout_s: float) -> None:
        self._http = http
        self._url = url
        self._timeout_s = timeout_s
        self._kept = self._answered = False

    async def fetch(self) -> Fetched:
        """Read the page; the time-out holds for all of it, however slowly it drips."""
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    fetched = await self._read()
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    # The exporter may have closed the connection that was kept just now.
                    if self._answered or not self._kept:
                        raise
                    fetched = await self._read()
        except (httpx.HTTPError, TimeoutError, OSError) as exc:
            self._kept = False
            raise FetchError(*explain(exc)) from exc
        self._kept = True
        return fetched

    async def _read(self) -> Fetched:
        self._answered = False
        async with self._http.stream("GET", self._url) as answer:
            self._answered = True
            if answer.status_code != 200:
                raise FetchError(f"http_{answer.status_code}")
            pieces: list[bytes] = []
            size = 0
            async for piece in answer.aiter_bytes():
                size += len(piece)
                if size > MAX_PAGE_BYTES:
                    raise FetchError("too_large", f"over {MAX_PAGE_BYTES} bytes")
                pieces.append(piece)
            return Fetched(b"".join(pieces), answer.headers.get("content-type"))

    async def close(self) -> None:
        await self._http.aclose()


class RedfishFetcher:
    """A management controller's resources.

    The first walk reads the whole tree and may take longer than the time-out of a page: the
    walker gives itself ten times as much, and keeps what it has by then.
    """

    def __init__(self, http: httpx.AsyncClient, walker: Walker) -> None:
        self._http = http
        self._walker = walker

    async def fetch(self) -> Fetched:
        try:
            return Fetched(await self._walker.walk(), "application/jsonl")
        except WalkError as exc:
            raise FetchError(exc.reason, str(exc)) from exc
        except (httpx.HTTPError, TimeoutError, OSError) as exc:
            raise FetchError(*explain(exc)) from exc

    async def close(self) -> None:
        await self._walker.close()
        await self._http.aclose()


class FileFetcher:
    """A file, or a folder as its reader packs it (sysfs, a Redfish tree)."""

    def __init__(self, target: Target) -> None:
        assert target.path is not None
        self._target = target
        self._path = target.path

    async def fetch(self) -> Fetched:
        try:
            async with asyncio.timeout(self._target.timeout_s):
                return Fetched(await asyncio.to_thread(read_path, self._target.kind, self._path))
        except TimeoutError as exc:
            raise FetchError("timed_out") from exc
        except (OSError, RackpulseError) as exc:
            raise FetchError("not_readable", str(exc)) from exc

    async def close(self) -> None:
        pass


class HostFetcher:
    """The collector's own host, asked through a library."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def fetch(self) -> Fetched:
        try:
            async with asyncio.timeout(self._target.timeout_s):
                return Fetched(await asyncio.to_thread(read_host, self._target.kind))
        except TimeoutError as exc:
            raise FetchError("timed_out") from exc
        except RackpulseError as exc:
            raise FetchError("not_readable", str(exc)) from exc

    async def close(self) -> None:
        pass


def read_host(kind: str) -> bytes:
    """What the reader of ``kind`` finds on this host.

    Raises:
        RackpulseError: it cannot be asked; the text says why.
    """
    from pipeline.collectors.registry import HostReader, reader

    return cast(HostReader, reader(kind)).read_host()


def read_path(kind: str, path: Path) -> bytes:
    """Bytes of a file, or of a folder as the reader of ``kind`` packs it.

    Raises:
        OSError: it cannot be read, or is larger than a page may be.
        ConfigError: readers of this kind read no folder.
    """
    from pipeline.collectors.registry import reader

    own = getattr(reader(kind), "read_folder" if path.is_dir() else "read_file", None)
    if own is not None:
        packed: bytes = own(path)
        return packed
    if path.is_dir():
        raise ConfigError(f'{path} is a folder: the reader "{kind}" reads files')
    with path.open("rb") as stream:
        body = stream.read(MAX_PAGE_BYTES + 1)
    if len(body) > MAX_PAGE_BYTES:
        raise OSError(f"{path} is larger than {MAX_PAGE_BYTES} bytes")
    return body


def explain(exc: BaseException) -> tuple[str, str]:
    """Reason and detail of a failed read."""
    text = str(exc) or type(exc).__name__
    if isinstance(exc, (TimeoutError, httpx.TimeoutException)):
        return "timed_out", ""
    if isinstance(exc, httpx.RemoteProtocolError):
        return ("truncated" if "complete" in text or "incomplete" in text else "bad_answer"), text
    if isinstance(exc, httpx.DecodingError):
        return "bad_answer", text
    if isinstance(exc, httpx.ConnectError):
        lowered = text.lower()
        if "certificate" in lowered or "ssl" in lowered or "tls" in lowered:
            return "tls", text
        if "name or service" in lowered or "getaddrinfo" in lowered or "temporary" in lowered:
            return "unknown_name", text
        return "refused", text
    if isinstance(exc, (httpx.ReadError, httpx.WriteError, ConnectionError)):
        return "connection_lost", text
    return "not_read", text
