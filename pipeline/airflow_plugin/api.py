"""The fleet page's routes, behind Airflow's login and its permissions."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel, Field

from pipeline.errors import RackpulseError
from pipeline.fleet_page import MEDIA_TYPES, queries, security, static_file
from pipeline.settings import load_settings

T = TypeVar("T")

# Several people may look at the page; the store is asked once for all of them.
_STATE_GOOD_FOR = timedelta(seconds=4)
_MAY_CHANGE_DAG = "score_fleet"


class SilenceBody(BaseModel):
    """What someone wants silenced."""

    scope: str = Field(max_length=20)
    entity: str = Field(default="", max_length=200)
    minutes: int = Field(ge=1, le=60 * 24 * 30)
    reason: str = Field(min_length=1, max_length=200)
    detector: str = Field(default="", max_length=60)


class Store:
    """One client for the page, made anew after a failure; one question at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._state: tuple[datetime, dict[str, Any]] | None = None

    def ask(self, question: Callable[[Client], T]) -> T:
        """Put a question to the store.

        Raises:
            HTTPException: 503 when it does not answer.
        """
        with self._lock:
            return self._ask(question)

    def _ask(self, question: Callable[[Client], T]) -> T:
        try:
            if self._client is None:
                self._client = self._connect()
        except (ClickHouseError, RackpulseError, OSError) as exc:
            raise HTTPException(503, f"The store is away: {_first_line(exc)}") from exc
        try:
            return question(self._client)
        except (ClickHouseError, OSError) as exc:
            self._client.close()
            self._client = None
            raise HTTPException(503, f"The store does not answer: {_first_line(exc)}") from exc

    def state(self) -> dict[str, Any]:
        """The page's state, at most a few seconds old."""
        with self._lock:
            now = datetime.now(UTC)
            if self._state is None or now - self._state[0] > _STATE_GOOD_FOR:
                cluster = load_settings().cluster
                found = self._ask(lambda client: queries.fleet_state(client, cluster, now))
                self._state = (now, found)
            return self._state[1]

    def forget(self) -> None:
        """The state has changed: the next question is put anew."""
        self._state = None


def _first_line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0][:200]


def _may_change(user: Any) -> bool:
    """Whoever may start a scoring run may silence as well."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method="POST",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=_MAY_CHANGE_DAG),
            user=user,
        )
    )


def _key() -> str:
    return str(conf.get("api", "secret_key"))


def check_change(
    request: Request,
    user: GetUserDep,
    x_rackpulse_csrf: Annotated[str | None, Header()] = None,
) -> str:
    """Guard of every route that changes something; returns the user's name.

    Raises:
        HTTPException: 403 for a forged request or a user who may only look.
    """
    headers = request.headers
    if not security.is_same_origin(
        headers.get("origin"), headers.get("sec-fetch-site"), headers.get("host")
    ):
        raise HTTPException(403, "This request comes from another site.")
    now = datetime.now(UTC)
    if not security.is_csrf_token(x_rackpulse_csrf, _key(), str(user.get_id()), now):
        raise HTTPException(403, "The page is too old: load it again.")
    if not _may_change(user):
        raise HTTPException(403, "You may look, but not change anything.")
    return str(user.get_name())


Looks = Depends(requires_access_view(AccessView.CLUSTER_ACTIVITY))
Changes = Annotated[str, Depends(check_change)]


def make_app(connect: Callable[[], Client]) -> FastAPI:
    """The application that Airflow mounts.

    Args:
        connect: makes a client of the store.
    """
    store = Store(connect)
    app = FastAPI(title="rackpulse", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def harden(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        answer = await call_next(request)
        for name, value in security.HEADERS.items():
            answer.headers[name] = value
        return answer

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, exc: HTTPException) -> Response:
        # A person who follows a link of an alert should see the login, not a line of JSON.
        if exc.status_code == 401 and "text/html" in request.headers.get("accept", ""):
            root = request.scope.get("root_path", "").removesuffix("/rackpulse")
            back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{root}/auth/login/?next={quote(back, safe='/')}", 302)
        return JSONResponse({"detail": exc.detail}, exc.status_code)

    @app.exception_handler(RackpulseError)
    async def explain(_request: Request, exc: RackpulseError) -> Response:
        return JSONResponse({"detail": str(exc)}, 400)

    @app.get("/fleet", dependencies=[Looks])
    def page() -> Response:
        return Response(static_file("fleet.html"), media_type=MEDIA_TYPES["fleet.html"])

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        try:
            return Response(static_file(name), media_type=MEDIA_TYPES[name])
        except KeyError as exc:
            raise HTTPException(404, "There is no such file.") from exc

    @app.get("/api/fleet", dependencies=[Looks])
    def fleet(user: GetUserDep) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {
            **store.state(),
            "can_change": _may_change(user),
            "csrf": security.csrf_token(_key(), str(user.get_id()), now),
        }

    @app.get("/api/incidents/{incident_id}", dependencies=[Looks])
    def one(incident_id: str) -> dict[str, Any]:
        now = datetime.now(UTC)
        found = store.ask(lambda client: queries.incident(client, incident_id, now))
        if found is None:
            raise HTTPException(404, "There is no such incident.")
        return found

    @app.post("/api/silences", status_code=201)
    def silence(body: SilenceBody, who: Changes) -> dict[str, str]:
        if body.scope != "all" and not body.entity:
            raise HTTPException(400, "Name what is to be silenced.")
        # Loads the detectors: not before someone silences something.
        from pipeline import incidents

        now = datetime.now(UTC)
        made = store.ask(
            lambda client: incidents.silence(
                client,
                load_settings().cluster,
                body.scope,
                "" if body.scope == "all" else body.entity,
                starts_at=now,
                ends_at=now + timedelta(minutes=body.minutes),
                reason=body.reason,
                by=who,
                detector=body.detector,
            )
        )
        store.forget()
        return {"id": made}

    @app.delete("/api/silences/{silence_id}")
    def lift(silence_id: str, who: Changes) -> dict[str, str]:
        from pipeline import incidents

        store.ask(lambda client: incidents.unsilence(client, silence_id, by=who))
        store.forget()
        return {"id": silence_id}

    return app
