"""The hall over HTTP: exporters' pages, Redfish trees, kernel logs, and its own control page."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import RackpulseError
from pipeline.hall import constants as c
from pipeline.hall import kmsg, names
from pipeline.hall.faults import Fault
from pipeline.hall.history import History
from pipeline.hall.live import LiveHall
from pipeline.hall.pages.dcgm import DcgmPages
from pipeline.hall.pages.infiniband import InfinibandPages
from pipeline.hall.pages.nmxt import NmxtPages
from pipeline.hall.pages.redfish import RedfishTrees
from pipeline.hall.pages.ufm import UfmPages
from pipeline.hall.truth import fault_line

log = logging.getLogger("rackpulse.hall")

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_YEAR_S = 365 * 86_400
_LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})


class FaultRequest(BaseModel):
    """Body of ``POST /hall/faults``: a seed draws three faults; else one fault is named."""

    model_config = ConfigDict(extra="forbid")

    seed: int | None = Field(default=None, ge=0)
    cause: str | None = None
    entity: str | None = None
    severity: float | None = Field(default=None, gt=0, le=100, allow_inf_nan=False)
    ramp_s: float | None = Field(default=None, ge=0, le=_YEAR_S)
    delay_s: float = Field(default=0.0, ge=0, le=86_400)
    minutes: float | None = Field(default=None, gt=0, le=_YEAR_S / 60)


class HallApp:
    """Answers for one live hall.

    Args:
        history: written before anything is served.
        when_ready: called once, when history is written and pages are served.
    """

    def __init__(
        self,
        live: LiveHall,
        history: History | None = None,
        *,
        when_ready: Callable[[], None] = lambda: None,
        on_failure: Callable[[BaseException], None] = lambda exc: None,
    ) -> None:
        self._live = live
        self._history = history
        self._when_ready = when_ready
        self._on_failure = on_failure
        self._ready = False
        fleet = live.fleet
        self._dcgm, self._nmxt = DcgmPages(fleet), NmxtPages(fleet)
        self._ib, self._redfish = InfinibandPages(fleet), RedfishTrees(fleet)
        self._ufm = UfmPages(fleet)
        self._trays = {host: number for number, host in enumerate(fleet.hosts)}
        self._racks = {rack: number for number, rack in enumerate(fleet.rack_ids)}
        self._shards = {name: number for number, name in enumerate(names.ib_targets(fleet))}

    def starlette(self) -> Starlette:
        """The application."""
        page = self._page
        return Starlette(
            routes=[
                Route("/livez", _livez),
                Route("/readyz", self._readyz),
                Route("/dcgm/{host}/metrics", page(self._dcgm_page)),
                Route("/nmxt/{rack}/{tray:int}/metrics", page(self._nmxt_page)),
                Route("/ib/{shard}/metrics", page(self._ib_page)),
                Route("/ufm/{shard}/telemetry", page(self._ufm_page)),
                Route("/redfish/{manager}/{path:path}", page(self._redfish_page)),
                Route("/kmsg/{host}", page(self._kmsg_page)),
                Route("/hall/state", self._state),
                Route("/hall/faults", self._post_faults, methods=["POST"]),
                Route("/hall/faults/{number:int}", self._end_fault, methods=["DELETE"]),
            ],
            middleware=[Middleware(_LocalOnly)],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        work = asyncio.create_task(self._run())
        try:
            yield
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            if self._ready:
                self._live.save()

    async def _run(self) -> None:
        try:
            history = self._history
            whole = history is None or not history.needed
            if not whole and history is not None:
                whole = await run_in_threadpool(history.write)
            if not whole:
                return
            await run_in_threadpool(self._live.catch_up)
            self._ready = True
            self._when_ready()
            while True:
                self._live.step()
                await asyncio.sleep(1.0)
        except Exception as exc:  # the service ends with it: nobody else would see it
            self._on_failure(exc)

    # --- pages ---
    def _page(self, answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if not self._ready:
                return PlainTextResponse("the hall is starting\n", 503)
            return answer(request)

        return endpoint

    def _dcgm_page(self, request: Request) -> Response:
        tray = self._trays.get(request.path_params["host"])
        if tray is None:
            return _no_such("host")
        view = self._live.view()
        if not view.after.host_seen[tray]:
            return PlainTextResponse("the exporter is down\n", 503)
        return Response(self._dcgm.render(view, tray), media_type=_TEXT)

    def _nmxt_page(self, request: Request) -> Response:
        rack = self._racks.get(request.path_params["rack"])
        tray = int(request.path_params["tray"]) - 1
        if rack is None or not 0 <= tray < c.SWITCH_TRAYS:
            return _no_such("switch tray")
        body = self._nmxt.render(self._live.view(), rack * c.SWITCH_TRAYS + tray)
        return Response(body, media_type=_TEXT)

    def _ib_page(self, request: Request) -> Response:
        shard = self._shards.get(f"ib/{request.path_params['shard']}")
        if shard is None:
            return _no_such("part of the fabric")
        return Response(self._ib.render(self._live.view(), shard), media_type=_TEXT)

    def _ufm_page(self, request: Request) -> Response:
        shard = self._shards.get(f"ib/{request.path_params['shard']}")
        if shard is None:
            return _no_such("part of the fabric")
        body = self._ufm.render(self._live.view(), shard)
        return Response(body, media_type="application/json")

    def _redfish_page(self, request: Request) -> Response:
        path = "/" + str(request.path_params["path"]).rstrip("/")
        found = self._redfish.get(self._live.view(), request.path_params["manager"], path)
        return _no_such("resource") if found is None else JSONResponse(found)

    def _kmsg_page(self, request: Request) -> Response:
        tray = self._trays.get(request.path_params["host"])
        if tray is None:
            return _no_such("host")
        view = self._live.view()
        body = kmsg.page(self._live.fleet, self._live.faults(), tray, view.after.at)
        return Response(body, media_type="text/plain; charset=utf-8")

    # --- control ---
    async def _readyz(self, _request: Request) -> Response:
        if self._ready:
            return PlainTextResponse("ok\n")
        share = self._history.done_share if self._history is not None else 0.0
        return PlainTextResponse(f"writing history: {share:.0%}\n", 503)

    async def _state(self, _request: Request) -> Response:
        live, fleet = self._live, self._live.fleet
        return JSONResponse(
            {
                "racks": fleet.racks, "gpus": fleet.gpus, "seed": fleet.seed,
                "cluster": fleet.cluster, "ready": self._ready,
                "at": fault_time(live.hall.at), "resumed": live.resumed,
                "draws": live.draws,
                "faults": [
                    {"number": number, **fault_line(fault)}
                    for number, fault in enumerate(live.faults())
                ],
            }
        )  # fmt: skip

    async def _post_faults(self, request: Request) -> Response:
        if not self._ready:
            return PlainTextResponse("the hall is starting\n", 503)
        try:
            asked = FaultRequest.model_validate(await request.json())
        except (ValueError, RecursionError) as exc:  # also what pydantic raises
            return _bad(str(exc))
        try:
            if asked.seed is not None and asked.cause is None:
                found = self._live.draw(asked.seed, **_set(delay_s=asked.delay_s or None))
                return JSONResponse({"seed": asked.seed, "faults": [self._named(f) for f in found]})
            if asked.cause is None or asked.entity is None:
                return _bad("give either seed, or cause and entity")
            number, fault = self._live.add(
                asked.cause, asked.entity, severity=asked.severity, ramp_s=asked.ramp_s,
                delay_s=asked.delay_s, minutes=asked.minutes,
            )  # fmt: skip
        except RackpulseError as exc:
            return _bad(str(exc))
        return JSONResponse({"faults": [{"number": number, **self._named(fault)}]})

    def _named(self, fault: Fault) -> dict[str, Any]:
        name = names.entity_name(self._live.fleet, fault.entity_kind, fault.entity)
        return {**fault_line(fault), "entity_name": name}

    async def _end_fault(self, request: Request) -> Response:
        try:
            fault = self._live.end(int(request.path_params["number"]))
        except RackpulseError as exc:
            return _bad(str(exc))
        return JSONResponse({"faults": [fault_line(fault)]})


class _LocalOnly:
    """Refuses requests that a foreign page or name sends to this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0].lower()
            if host not in _LOCAL or b"origin" in headers:
                answer = PlainTextResponse("only for programs on this machine\n", 403)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def fault_time(at: float) -> str | None:
    """A time for the state page."""
    from pipeline.hall.truth import iso

    return iso(at) if math.isfinite(at) else None


def _set(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


async def _livez(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def _no_such(what: str) -> Response:
    return PlainTextResponse(f"no such {what}\n", 404)


def _bad(text: str) -> Response:
    return JSONResponse({"error": text}, 400)
