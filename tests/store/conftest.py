"""One running store for the tests of its HTTP interface, and a plain HTTP client."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest
from clickhouse_connect.driver.client import Client

from tests.support.store import RunningStore


@dataclass(frozen=True)
class Reply:
    """An answer of the store."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def code(self) -> int | None:
        """ClickHouse's error code, by the header."""
        found = self.headers.get("x-clickhouse-exception-code")
        return int(found) if found else None


class Http:
    """Requests with nothing added but a login."""

    def __init__(self, store: RunningStore, role: str = "owner") -> None:
        self.store = store
        login = getattr(store.users, role)
        self.user, self.password = login.user, login.password

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def __call__(
        self,
        body: bytes | str = b"",
        method: str = "POST",
        path: str = "/",
        headers: Mapping[str, str] | None = None,
        login: bool = True,
        **params: str,
    ) -> Reply:
        endpoint = self.store.endpoint
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=60)
        sent = dict(headers or {})
        if login:
            sent.setdefault("Authorization", self.basic)
        target = f"{path}?{urlencode(params)}" if params else path
        content = body.encode() if isinstance(body, str) else body
        try:
            connection.request(method, target, body=content, headers=sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with RunningStore(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def http_owner(store: RunningStore) -> Http:
    return Http(store)


@pytest.fixture
def http_analyst(store: RunningStore) -> Http:
    return Http(store, "analyst")


@pytest.fixture
def client(store: RunningStore) -> Iterator[Client]:
    with store.client() as connected:
        yield connected


@pytest.fixture
def table(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh table (id UInt64, name String, power_w Nullable(Float32))."""
    name = "t_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:80]
    client.command(f"DROP TABLE IF EXISTS telemetry.{name}")
    client.command(
        f"CREATE TABLE telemetry.{name} (id UInt64, name String, power_w Nullable(Float32))"
        " ENGINE = MergeTree ORDER BY id"
    )
    yield f"telemetry.{name}"
    client.command(f"DROP TABLE IF EXISTS telemetry.{name}")
