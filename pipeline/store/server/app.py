"""ClickHouse's HTTP interface as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from pipeline.clock import Clock
from pipeline.store.local import Role, Users
from pipeline.store.server import execute, guard
from pipeline.store.server.body import Body
from pipeline.store.server.engine import Connection, Done, Engine
from pipeline.store.server.failure import StoreError
from pipeline.store.server.request import Request
from pipeline.store.server.sessions import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, Sessions

log = logging.getLogger(__name__)
T = TypeVar("T")

BODY_MEMORY = 64 << 20
ANSWER_MEMORY = 8 << 20
PIPE_SIZE = 1 << 20


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


class App:
    """The application: guards, reads the request, runs the statement, answers."""

    def __init__(
        self, engine: Engine, users: Users, scratch: Path, clock: Clock, threads: int = 64
    ) -> None:
        self._engine = engine
        self._users = users
        self._scratch = scratch
        self._sessions = Sessions(engine, clock)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="statement")

    def close(self) -> None:
        """Wait for what runs and close the sessions."""
        self._pool.shutdown(wait=True)
        self._sessions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = Answer(self._engine, send)
        body = Body(self._scratch, BODY_MEMORY)
        try:
            await self._handle(scope, receive, answer, body)
        except StoreError as exc:
            await answer.fail(exc)
        except ClientGoneError:
            log.info("a client went away before its request was complete")
        except Exception:
            log.exception("a request failed")
            await answer.fail(StoreError(1002, "The store failed; its log says more"))
        finally:
            body.close()

    async def _handle(self, scope: Scope, receive: Receive, answer: Answer, body: Body) -> None:
        headers = Headers(scope=scope)
        port = scope["server"][1]
        if not guard.local_host(headers.get("host"), port):
            raise StoreError(497, "This store answers to 127.0.0.1 and localhost only")
        if not guard.local_origin(headers.get("origin"), port):
            raise StoreError(497, "This store does not answer to web pages")
        method, path = scope["method"], scope["path"]
        if method not in ("GET", "POST", "HEAD"):
            raise StoreError(344, f"Method {method} is not supported")
        if path == "/ping":
            await answer.text("Ok.\n")
            return
        if path not in ("/", "/query"):
            await answer.text("There is only / and /ping here\n", status=404)
            return
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if method != "POST" and not any(name == "query" for name, _ in pairs):
            await answer.text("Ok.\n")
            return
        request = Request(read_only=method != "POST")
        known = self._engine.settings
        role = guard.authenticate(self._users, headers, dict(reversed(pairs)))
        request.take(pairs, known)
        if "x-clickhouse-database" in headers:
            request.own.setdefault("database", headers["x-clickhouse-database"])
        if "x-clickhouse-format" in headers:
            request.own.setdefault("default_format", headers["x-clickhouse-format"])
        answer.query_id = request.query_id or str(uuid.uuid4())
        async for piece in _incoming(receive):
            body.append(piece)
        await self._run(role, request, body, answer)

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _run(self, role: Role, request: Request, body: Body, answer: Answer) -> None:
        session_id = request.session_id
        if session_id is None:
            connection = await self._thread(lambda: self._engine.connection(role))
            try:
                await self._statement(connection, request, body, answer)
            finally:
                await self._thread(connection.close)
            return
        must_exist = request.flag("session_check")
        session = await self._thread(
            lambda: self._sessions.take(role, session_id, must_exist=must_exist)
        )
        try:
            await self._statement(session.connection, request, body, answer)
        finally:
            timeout_s = _timeout(request)
            close = request.flag("close_session")
            await self._thread(
                lambda: self._sessions.give_back(role, session_id, timeout_s, close=close)
            )

    async def _statement(
        self, connection: Connection, request: Request, body: Body, answer: Answer
    ) -> None:
        found = execute.plan(self._engine, request, body)
        await self._thread(lambda: execute.apply(connection, request))
        if found.data_start is not None:
            done = await self._thread(lambda: execute.run_insert(connection, request, found, body))
            await answer.done(done)
        elif found.answers:
            await self._stream(connection, request, found, answer)
        else:
            done = await self._thread(lambda: execute.run_other(connection, request, found))
            await answer.done(done, found.format if done.answer else None)

    async def _stream(
        self, connection: Connection, request: Request, found: execute.Plan, answer: Answer
    ) -> None:
        read_end, write_end = os.pipe()
        try:
            run = await self._thread(
                lambda: execute.run_answer(connection, request, found, write_end)
            )
        except BaseException:
            os.close(read_end)
            os.close(write_end)
            raise

        def work() -> Done:
            try:
                return run()
            finally:
                os.close(write_end)

        job = asyncio.ensure_future(self._thread(work))
        pieces = _pipe(read_end)
        try:
            if request.flag("wait_end_of_query"):
                with tempfile.SpooledTemporaryFile(ANSWER_MEMORY, dir=str(self._scratch)) as held:
                    async for piece in pieces:
                        held.write(piece)
                    done = await job
                    await answer.held(done, found.format, held)
            else:
                await answer.stream(job, found.format, pieces)
        finally:
            await pieces.aclose()
            with suppress(StoreError):
                await job


class Answer:
    """The response: status, ClickHouse's headers, body."""

    def __init__(self, engine: Engine, send: Send) -> None:
        self._engine = engine
        self._send = send
        self._started = False
        self.query_id = ""

    async def _start(
        self, status: int, *, done: Done | None = None, format: str | None = None,
        code: int | None = None, content_type: str = "text/plain; charset=UTF-8",
    ) -> None:  # fmt: skip
        headers = {
            "Content-Type": content_type,
            "X-ClickHouse-Server-Display-Name": "rackpulse",
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-Content-Type-Options": "nosniff",
        }
        if self.query_id:
            headers["X-ClickHouse-Query-Id"] = self.query_id
        if format:
            headers["X-ClickHouse-Format"] = format
        if done is not None:
            headers["X-ClickHouse-Summary"] = _summary(done)
        if code is not None:
            headers["X-ClickHouse-Exception-Code"] = str(code)
        self._started = True
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _body(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def text(self, text: str, status: int = 200) -> None:
        """A short text."""
        await self._start(status)
        await self._body(text.encode(), more=False)

    async def fail(self, error: StoreError) -> None:
        """An error; where the answer has begun, the connection is cut instead."""
        if self._started:
            raise error
        await self._start(error.status, code=error.code)
        await self._body(f"{error.text}\n".encode(), more=False)

    async def done(self, done: Done, format: str | None = None) -> None:
        """A statement that is over, with its short answer."""
        await self._start(200, done=done, format=format)
        await self._body(done.answer, more=False)

    async def held(self, done: Done, format: str, held: IO[bytes]) -> None:
        """An answer that is complete."""
        held.seek(0)
        await self._start(200, done=done, format=format)
        while piece := held.read(PIPE_SIZE):
            await self._body(piece, more=True)
        await self._body(b"", more=False)

    async def stream(
        self, job: asyncio.Future[Done], format: str, pieces: AsyncIterator[bytes]
    ) -> None:
        """An answer that is sent as it comes."""
        async for piece in pieces:
            if not self._started:
                await self._start(200, format=format)
            await self._body(piece, more=True)
        done = await job
        if not self._started:
            await self._start(200, done=done, format=format)
        await self._body(b"", more=False)


async def _incoming(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            return


async def _pipe(read_end: int) -> AsyncGenerator[bytes, None]:
    reader = asyncio.StreamReader(limit=PIPE_SIZE)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
    )
    try:
        while piece := await reader.read(PIPE_SIZE):
            yield piece
    finally:
        transport.close()


def _summary(done: Done) -> str:
    return json.dumps(
        {
            "read_rows": str(done.rows_read),
            "read_bytes": str(done.bytes_read),
            "written_rows": str(done.rows_written),
            "written_bytes": str(done.bytes_written),
            "total_rows_to_read": "0",
            "result_rows": str(done.rows_written),
            "result_bytes": str(done.bytes_written),
            "elapsed_ns": str(int(done.elapsed_s * 1e9)),
        }
    )


def _timeout(request: Request) -> float:
    try:
        wanted = float(request.own.get("session_timeout", DEFAULT_TIMEOUT_S))
    except ValueError as exc:
        raise StoreError(36, "session_timeout must be a number of seconds") from exc
    return min(max(wanted, 0.0), MAX_TIMEOUT_S)
