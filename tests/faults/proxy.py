"""Stands between the writer and the store and makes the store misbehave.

It understands just enough HTTP: whole requests and whole answers, on connections that are
closed after each.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from pipeline.settings import Settings
from pipeline.store.local import read_endpoint, read_users

# What to do with an insert: None passes it on.
Rule = Callable[["Request"], None]


class Request:
    """An insert on its way: call :meth:`forward`, then :meth:`answer`, or neither."""

    def __init__(self, handler: _Handler, body: bytes) -> None:
        self._handler = handler
        self.body = body
        in_url = parse_qs(urlsplit(handler.path).query).get("query", [""])[0]
        self.sql = in_url or body[:20_000].decode("latin-1")

    def forward(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """Let the store have it; its answer."""
        return self._handler.upstream(self.body)

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer the writer."""
        self._handler.reply(status, headers, body)

    def fail(self, code: int, text: str = "made by a test") -> None:
        """Answer as ClickHouse answers with this error code."""
        body = f"Code: {code}. DB::Exception: {text}".encode()
        self.answer(500, [("X-ClickHouse-Exception-Code", str(code))], body)

    def hang_up(self) -> None:
        """Close the connection without an answer."""
        self._handler.close_connection = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ClassVar[StoreProxy]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        body = self._body()
        self.close_connection = True
        request = Request(self, body)
        rule = self.proxy.rule
        if rule is not None and "FROM input(" in request.sql:
            rule(request)
            return
        self.reply(*self.upstream(body))

    do_GET = do_POST = _serve  # noqa: N815  # http.server asks for these names

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def upstream(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        host, port = self.proxy.store
        connection = http.client.HTTPConnection(host, port, timeout=120)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "host")
        }
        headers["Host"] = f"{host}:{port}"
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class StoreProxy:
    """The store as the writer sees it; ``rule`` decides about its fenced inserts."""

    def __init__(self, store: Settings) -> None:
        self._settings = store
        self.rule: Rule | None = None
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def store(self) -> tuple[str, int]:
        """Where the real store listens now."""
        endpoint = read_endpoint(self._settings.state_dir)
        assert endpoint is not None
        return endpoint.host, endpoint.port

    @property
    def settings(self) -> Settings:
        """Settings that lead through the proxy."""
        owner = read_users(self._settings.state_dir).owner
        dsn = (
            f"clickhouse://{owner.user}:{owner.password}"
            f"@127.0.0.1:{self._server.server_port}/telemetry"
        )
        return self._settings.model_copy(update={"store_dsn": SecretStr(dsn)})

    def __enter__(self) -> StoreProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
