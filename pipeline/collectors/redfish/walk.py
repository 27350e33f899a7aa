"""The walk of a management controller's resources over HTTP.

The first walk goes through the whole tree, bounded, and learns which resources carry
readings; the following ones read only those, until it is time to look again. Management
controllers are slow and answer few requests at a time: at most :data:`CONCURRENCY` are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import httpx

from pipeline.clock import Clock
from pipeline.collectors.redfish import coolant
from pipeline.collectors.redfish.tree import (
    MAX_RESOURCE_BYTES,
    MAX_RESOURCES,
    Resource,
    dump,
    kind_of,
    normal,
)
from pipeline.collectors.redfish.values import is_headroom
from pipeline.errors import ConfigError

ROOT = "/redfish/v1"
CONCURRENCY = 4
LOOK_AGAIN_S = 600.0
WALK_TIMEOUTS = 10
_LATE = "not read before the walk's time ran out"

# Read at every walk.
LIVE = frozenset(
    {
        *coolant.KINDS, "CoolingUnit", "LeakDetector", "LeakDetection", "EnvironmentMetrics",
        "ThermalMetrics", "PortMetrics", "Port", "ProcessorMetrics", "PowerSupplyMetrics",
        "PowerDistribution", "PowerDistributionMetrics", "Fan", "Sensor",
    }
)  # fmt: skip
# Read when the tree is walked: these change rarely.
RARE = frozenset({"MemoryMetrics", "PowerSupply", "Control", "NvidiaPolicy"})
# Kept from the last walk of the tree, for what they say of others.
CONTEXT = frozenset({"ServiceRoot", "Manager", "Chassis", "Processor"})

# Branches without readings, and links that lead back.
_SKIPPED = frozenset(
    {
        "AccountService", "Accounts", "Actions", "Assembly", "Bios", "Boot", "BootOptions",
        "Certificates", "CertificateService", "ComponentIntegrity", "EthernetInterfaces",
        "EventService", "FirmwareInventory", "GraphicsControllers", "HostInterfaces",
        "Instances", "JobService", "JsonSchemas", "KeyService", "Links", "LogServices",
        "MediaCollections", "NetworkDeviceFunctions", "NetworkInterfaces", "NetworkProtocol",
        "OriginOfCondition", "PCIeDevices", "PCIeFunctions", "PCIeSlots", "Registries",
        "RelatedItem", "RelatedProperties", "ResourceBlocks", "Roles", "SecureBoot",
        "SerialInterfaces", "SessionService", "Sessions", "Settings", "SoftwareInventory",
        "Storage", "Subscriptions", "TaskService", "Tasks", "TelemetryService",
        "TrustedComponents", "UpdateService", "USBControllers", "USBPorts", "VirtualMedia",
    }
)  # fmt: skip

# What building and sending a request raises: paths and headers come from the controller, and
# one that no request can carry (too long, control or half characters) is its own loss only.
_NOT_SENT = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError)


class WalkError(Exception):
    """Nothing could be read of the controller; the text is for the target's health row.

    Args:
        reason: short, stable word.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password of a management controller; never printed."""

    user: str
    password: str = field(repr=False)


class Walker:
    """Walks one management controller.

    Args:
        http: the shared client; its TLS verification stays on.
        url: the controller's address; a path before ``/redfish/v1`` is kept as a prefix, and
            a path behind it is where the walk begins.
        manager_id: id that the operator gave the controller.
        timeout_s: of one request. A walk has :data:`WALK_TIMEOUTS` times as much: what was not
            read by then is missing, and what was read is kept.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        *,
        clock: Clock,
        manager_id: str | None = None,
        credentials: Credentials | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ConfigError(f"Take the password out of the address of {parts.hostname}")
        before, found, behind = parts.path.partition(ROOT)
        self._base = urlunsplit((parts.scheme, parts.netloc, before.rstrip("/"), "", ""))
        self._start = normal(ROOT + behind) if found else ROOT
        self._http = http
        self._clock = clock
        self._manager_id = manager_id
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._until = float("inf")
        self._gate = asyncio.Semaphore(CONCURRENCY)
        self._token: str | None = None
        self._session: str | None = None
        self._basic = False
        self._login = asyncio.Lock()
        self._live: list[str] = []
        self._context: dict[str, Resource] = {}
        self._looked_at = float("-inf")

    async def walk(self) -> bytes:
        """Read the controller.

        Returns:
            A page's body, as :func:`pipeline.collectors.redfish.tree.parse` reads it.

        Raises:
            WalkError: nothing could be read.
        """
        missing: dict[str, str] = {}
        self._until = asyncio.get_running_loop().time() + self._timeout_s * WALK_TIMEOUTS
        if self._clock.monotonic() - self._looked_at >= LOOK_AGAIN_S or not self._live:
            found = await self._whole_tree(missing)
        else:
            found = await self._read_all(self._live, missing)
            if len(missing) > len(found):
                self._looked_at = float("-inf")  # the tree may have changed: look again
        if _LATE in missing.values():
            self._looked_at = float("-inf")  # say again what is missing, until all is read
        if not found:
            if _LATE in missing.values():
                raise WalkError("timed_out", _LATE)
            raise WalkError("nothing_read", next(iter(missing.values()), "no resource"))
        context = [r for path, r in self._context.items() if path not in found]
        return dump(found.values(), context=context, manager_id=self._manager_id, missing=missing)

    async def _whole_tree(self, missing: dict[str, str]) -> dict[str, Resource]:
        seen = {self._start}
        wave = [self._start]
        found: dict[str, Resource] = {}
        context: dict[str, Resource] = {}
        while wave:
            answers = await self._read_all(wave, missing)
            wave = []
            for path, resource in answers.items():
                kind = kind_of(resource)
                if kind in CONTEXT:
                    context[path] = resource
                elif kind in LIVE or kind in RARE:
                    found[path] = resource
                following = list(next_paths(resource))
                try:
                    following += self._next_page(path, resource)
                except ValueError as exc:
                    missing[path] = f"its next page is not followed: {exc}"
                for next_path in following:
                    if next_path not in seen and len(seen) < MAX_RESOURCES:
                        seen.add(next_path)
                        wave.append(next_path)
        if not found and not context:
            return {}
        self._live = live_paths(found)
        # A sensor of headroom tells what an excerpt of it means.
        headroom = {
            path: resource
            for path, resource in found.items()
            if kind_of(resource) == "Sensor" and is_headroom(path, resource)
        }
        self._context = {**context, **headroom}
        self._looked_at = self._clock.monotonic()
        return found

    def _next_page(self, path: str, collection: Resource) -> list[str]:
        """Path and query of a collection's next page; empty where it names none.

        Raises:
            ValueError: the page is not one of this controller's resources.
        """
        link = collection.get("Members@odata.nextLink")
        if link is None:
            return []
        if not isinstance(link, str):
            raise ValueError("no address")
        base = urlsplit(self._base)
        # Links are written without the prefix that a proxy puts before them, or with it.
        to = urlsplit(link if link.startswith(ROOT) else urljoin(self._base + path, link))
        if to.netloc and (to.username is not None or _origin(to) != _origin(base)):
            raise ValueError("it is at another address")
        found = to.path
        if to.netloc and base.path and found.startswith(base.path + ROOT):
            found = found.removeprefix(base.path)
        if not found.startswith(ROOT) or ".." in found:
            raise ValueError("it is no resource")
        # The query is what tells the pages apart.
        return [urlunsplit(("", "", found, to.query, ""))]

    async def _read_all(self, paths: list[str], missing: dict[str, str]) -> dict[str, Resource]:
        answers = await asyncio.gather(*(self._read(path) for path in paths))
        found = {}
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, str):
                missing[path] = answer
            else:
                found[path] = answer
        return found

    async def _read(self, path: str) -> Resource | str:
        """One resource, or why it could not be read."""
        if asyncio.get_running_loop().time() >= self._until:
            return _LATE
        try:
            async with asyncio.timeout_at(self._until):
                return await self._ask(path)
        except TimeoutError:
            return _LATE

    async def _ask(self, path: str) -> Resource | str:
        async with self._gate:
            try:
                status, body = await self._get(path)
                if status == 401 and self._credentials is not None:
                    await self._open_session()
                    status, body = await self._get(path)
            except httpx.TimeoutException:
                return "timed out"
            except (*_NOT_SENT, WalkError) as exc:
                return f"{type(exc).__name__}: {exc}"
        if status != 200:
            return f"HTTP {status}"
        try:
            resource = json.loads(body)
        except (ValueError, RecursionError):
            return "not JSON"
        if not isinstance(resource, dict):
            return "not a resource"
        resource["@odata.id"] = path  # where it was found wins over what it says of itself
        return resource

    async def _get(self, path: str) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if self._token:
            headers["X-Auth-Token"] = self._token
        auth = None
        if self._basic and self._credentials is not None:
            auth = httpx.BasicAuth(self._credentials.user, self._credentials.password)
        async with self._http.stream(
            "GET", self._base + path, headers=headers, timeout=self._timeout_s,
            follow_redirects=False, auth=auth,
        ) as answer:  # fmt: skip
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_RESOURCE_BYTES:
                    raise WalkError("too_large", path)
            return answer.status_code, bytes(body)

    async def _open_session(self) -> None:
        assert self._credentials is not None
        used = self._token
        async with self._login:
            if self._token != used:
                return  # another request logged in meanwhile
            login = {"UserName": self._credentials.user, "Password": self._credentials.password}
            answer = await self._http.post(
                f"{self._base}{ROOT}/SessionService/Sessions",
                json=login, timeout=self._timeout_s, follow_redirects=False,
            )  # fmt: skip
            if answer.status_code in (404, 405, 501):
                self._basic = True  # a controller without sessions
                return
            if answer.status_code not in (200, 201) or "X-Auth-Token" not in answer.headers:
                raise WalkError("login_refused", f"HTTP {answer.status_code}")
            self._token = answer.headers["X-Auth-Token"]
            self._session = None
            with contextlib.suppress(ValueError):  # no address: the session ends by itself
                self._session = normal(urlsplit(answer.headers.get("Location", "")).path)

    async def close(self) -> None:
        """Give the session back: controllers have few."""
        if self._session and self._token:
            with contextlib.suppress(*_NOT_SENT):  # it ends by itself after a while
                await self._http.delete(
                    self._base + self._session,
                    headers={"X-Auth-Token": self._token},
                    timeout=self._timeout_s,
                )
        self._session = self._token = None


def live_paths(found: dict[str, Resource]) -> list[str]:
    """What is worth reading at every walk.

    Sensors whose reading stands in another live resource are left out: asking for each
    sensor by itself is what makes controllers slow.
    """
    shown: set[str] = set()
    for resource in found.values():
        if kind_of(resource) in LIVE and kind_of(resource) != "Sensor":
            shown.update(_sources(resource))
    return [
        path
        for path, resource in found.items()
        if kind_of(resource) in LIVE
        and not (kind_of(resource) == "Sensor" and (path in shown or not _wanted(resource)))
    ]


def _wanted(sensor: Resource) -> bool:
    kind = sensor.get("ReadingType")
    return kind in ("Temperature", "Power", "Voltage", "Current", "Rotational", "EnergyJoules")


def _sources(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        source = normal(value.get("DataSourceUri"))
        if source:
            yield source
        for inner in value.values():
            yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


def next_paths(resource: Resource) -> Iterator[str]:
    """Paths that lead on from a resource: its parts and members."""
    yield from _links(resource, 0)


def _origin(address: SplitResult) -> tuple[str, str | None, int | None]:
    default = {"http": 80, "https": 443}.get(address.scheme)
    return address.scheme, address.hostname, address.port or default


def _links(value: object, depth: int) -> Iterator[str]:
    if depth > 12:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "@odata.id":
                path = normal(inner)
                if depth and path.startswith(ROOT) and ".." not in path:
                    yield path
            elif name not in _SKIPPED:
                yield from _links(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _links(inner, depth + 1)
