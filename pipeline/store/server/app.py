"""ClickHouse's HTTP interface as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import IO, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive, Scope, Send

from pipeline.clock import Clock
from pipeline.store.local import Role, Users
from pipeline.store.server import codec, external, guard, hello, statement
from pipeline.store.server.answer import Answer
from pipeline.store.server.engine import Connection, Done, Engine
from pipeline.store.server.failure import StoreError
from pipeline.store.server.incoming import Incoming, Scratch
from pipeline.store.server.policy import Policy, database, limited
from pipeline.store.server.request import Request
from pipeline.store.server.sessions import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, Sessions
from pipeline.store.sql_text import first_word

log = logging.getLogger(__name__)
T = TypeVar("T")

# Statements at once, by role: analysts cannot keep the owner out.
MAX_STATEMENTS: Mapping[Role, int] = {"owner": 40, "analyst": 16}
# More threads than statements: opening, closing and KILL must always get one.
THREADS = 72
ANSWER_MEMORY = 8 << 20
PIPE_SIZE = 1 << 20
_FORM = "multipart/form-data"


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


class App:
    """The application: guards, reads the request, runs the statement, answers."""

    def __init__(self, engine: Engine, users: Users, scratch: Scratch, clock: Clock) -> None:
        self._engine = engine
        self._users = users
        self._scratch = scratch
        self._policy = Policy()
        self._sessions = Sessions(engine, clock)
        self._running: dict[Role, int] = {"owner": 0, "analyst": 0}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="statement")

    def close(self) -> None:
        """Cancel what still runs and close the sessions."""
        self._engine.stop_all()
        self._pool.shutdown(wait=True)
        self._sessions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = Answer(self._engine, send, self._thread)
        try:
            await self._guarded(scope, receive, answer)
        except StoreError as exc:
            await answer.fail(exc)
        except ClientGoneError:
            log.info("a client went away before its request was complete: nothing was run")
        except Exception:
            log.exception("a request failed")
            await answer.fail(StoreError(1002, "The store failed; its log says more"))

    async def _guarded(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        headers = Headers(scope=scope)
        answer.last = True
        guard.check_source(headers, scope["server"][1])
        answer.last = False
        method, path = scope["method"], scope["path"]
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if method not in ("GET", "POST", "HEAD"):
            raise StoreError(344, f"Method {method} is not supported")
        if path in ("/ping", "/replicas_status"):
            await answer.text("Ok.\n")
        elif path not in ("/", "/query"):
            await answer.text("There is only / and /ping here\n", status=404)
        elif method != "POST" and not any(name == "query" for name, _ in pairs):
            await answer.text("Ok.\n")
        else:
            role = guard.authenticate(self._users, headers, pairs)
            request = Request(read_only=method != "POST")
            await self._request(scope, receive, answer, headers, pairs, role, request)

    async def _request(
        self, scope: Scope, receive: Receive, answer: Answer, headers: Headers,
        pairs: list[tuple[str, str]], role: Role, request: Request,
    ) -> None:  # fmt: skip
        files: dict[str, IO[bytes]] = {}
        body = _incoming(receive)
        async with self._form(headers, body, scope["method"]) as form:
            for name, value in form or ():
                if isinstance(value, UploadFile):
                    files[name] = value.file
                else:
                    pairs.append((name, value))
            request.take(pairs, self._engine.settings, files)
            request.take_headers(headers)
            if role == "analyst":
                request.settings = limited(request.settings)
            request.own.setdefault("query_id", str(uuid.uuid4()))
            answer.query_id = request.query_id or ""
            if request.flag("enable_http_compression", default=True):
                accepted = headers.get("accept-encoding")
                answer.coding, answer.encoder = codec.encoder(accepted, request.flag("compress"))
            incoming = Incoming(request.statement, self._engine.input_formats, self._scratch)
            try:
                if form is None and not request.read_only:
                    await self._receive(incoming, headers, request, body)
                incoming.finish()
                greeting = hello.answer(
                    incoming.sql, request.own, self._engine.version, self._engine.timezone
                )
                if greeting is not None:
                    await answer.done(Done(rows_answered=1, answer=greeting), "Native")
                    return
                with self._counted(role, incoming):
                    await self._run(role, request, incoming, files, answer, receive)
            finally:
                incoming.close()

    async def _receive(
        self, incoming: Incoming, headers: Headers, request: Request, body: AsyncIterator[bytes]
    ) -> None:
        decoder = codec.decoder(headers.get("content-encoding"), request.flag("decompress"))
        async for piece in body:
            if decoder is None:
                incoming.feed(piece)
                continue

            def work(decoder: codec.Decoder = decoder, piece: bytes = piece) -> None:
                for plain in decoder.feed(piece):
                    incoming.feed(plain)

            await self._thread(work)
        if decoder is not None:
            decoder.finish()

    @asynccontextmanager
    async def _form(
        self, headers: Headers, body: AsyncGenerator[bytes, None], method: str
    ) -> AsyncIterator[list[tuple[str, UploadFile | str]] | None]:
        """Fields and files of a multipart request; None where it is none."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _FORM or method != "POST":
            yield None
            return
        parser = MultiPartParser(
            headers, body, max_files=100, max_fields=1000, max_part_size=16 << 20
        )
        try:
            form = await parser.parse()
        except MultiPartException as exc:
            raise StoreError(36, f"The form cannot be read: {exc.message}") from exc
        try:
            yield form.multi_items()
        finally:
            await form.close()

    @contextmanager
    def _counted(self, role: Role, incoming: Incoming) -> Iterator[None]:
        """Count a statement while it runs.

        Raises:
            StoreError: 202, too many run at once.
        """
        if role == "owner" and first_word(incoming.sql[:1000]) == "KILL":
            yield
            return
        if self._running[role] >= MAX_STATEMENTS[role]:
            raise StoreError(202, f"Too many simultaneous queries, at most {MAX_STATEMENTS[role]}")
        self._running[role] += 1
        try:
            yield
        finally:
            self._running[role] -= 1

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _run(
        self, role: Role, request: Request, incoming: Incoming, files: Mapping[str, IO[bytes]],
        answer: Answer, receive: Receive,
    ) -> None:  # fmt: skip
        session_id = request.session_id
        keep = session_id is not None
        if session_id is None:
            connection = await self._thread(lambda: self._engine.connection(role))
        else:
            taken = session_id
            must_exist = request.flag("session_check")
            session = await self._thread(
                lambda: self._sessions.take(role, taken, must_exist=must_exist)
            )
            connection = session.connection
        try:
            await self._statement(
                connection, role, request, incoming, files, answer, receive, keep=keep
            )
        finally:
            if session_id is None:
                await self._outlive(lambda: connection.close())
            else:
                ended = session_id
                timeout_s = _timeout(request)
                close = request.flag("close_session")
                await self._outlive(
                    lambda: self._sessions.give_back(role, ended, timeout_s, close=close)
                )

    async def _outlive(self, work: Callable[[], None]) -> None:
        """Clean up, also when this request is being cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._thread(work)))

    async def _statement(
        self, connection: Connection, role: Role, request: Request, incoming: Incoming,
        files: Mapping[str, IO[bytes]], answer: Answer, receive: Receive, *, keep: bool,
    ) -> None:  # fmt: skip
        # The statement's whole life is one piece of work in one thread, except that the
        # answer of a SELECT is carried from its pipe to the client meanwhile.
        outlet = _Outlet()

        def work() -> tuple[statement.Plan, Done]:
            try:
                if role == "analyst":
                    request.own["database"] = database(request.own.get("database"), connection)
                found = statement.plan(
                    self._engine, self._policy, connection, role, request, incoming
                )
                with (
                    statement.applied(connection, request, keep=keep),
                    external.tables(
                        connection, files, request.external, self._engine.input_formats
                    ),
                ):
                    if incoming.insert is not None:
                        return found, statement.run_insert(connection, request, found, incoming)
                    if found.answers:
                        outlet.plan = found
                        return found, statement.run_answer(
                            connection, request, found, outlet.write_end
                        )
                    return found, statement.run_other(connection, request, found)
            finally:
                outlet.close_write()

        job = asyncio.ensure_future(self._thread(work))
        watch = asyncio.ensure_future(self._watch(receive, request, outlet))
        try:
            await self._carry(job, outlet, request, answer)
        finally:
            watch.cancel()
            outlet.close_read()
            with suppress(StoreError):
                await asyncio.shield(job)

    async def _carry(
        self, job: asyncio.Future[tuple[statement.Plan, Done]], outlet: _Outlet,
        request: Request, answer: Answer,
    ) -> None:  # fmt: skip
        async def just_done() -> Done:
            return (await job)[1]

        pieces = outlet.pieces()
        try:
            first = await anext(pieces, b"")
            if not first:
                found, done = await job
                if found.answers:
                    await answer.done(done, found.format)
                else:
                    await answer.done(done, found.format if done.answer else None)
                return
            plan = outlet.plan
            assert plan is not None
            if request.flag("wait_end_of_query"):
                with tempfile.SpooledTemporaryFile(
                    ANSWER_MEMORY, dir=str(self._scratch.folder)
                ) as held:
                    held.write(first)
                    async for piece in pieces:
                        held.write(piece)
                    _, done = await job
                    await answer.held(done, plan.format, held)
            else:
                finished = asyncio.ensure_future(just_done())
                await answer.stream(finished, plan.format, _chain(first, pieces))
        finally:
            await pieces.aclose()

    async def _watch(self, receive: Receive, request: Request, outlet: _Outlet) -> None:
        """Stop reading for a client that has gone. Writes go on, as on a server."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if outlet.plan is None:
            return
        outlet.close_read()
        query_id = request.query_id
        if query_id:
            log.info("a client went away: its statement %s is cancelled", query_id)
            await self._thread(lambda: statement.cancel(self._engine, query_id))


class _Outlet:
    """A pipe from the engine to the client.

    Attributes:
        plan: the statement that writes to it, once that has started.
    """

    def __init__(self) -> None:
        read_end, self.write_end = os.pipe()
        self._read = os.fdopen(read_end, "rb", 0)
        self._write_open = True
        self._transport: asyncio.ReadTransport | None = None
        self.plan: statement.Plan | None = None

    def close_write(self) -> None:
        """No more comes; called by the statement's thread."""
        if self._write_open:
            self._write_open = False
            os.close(self.write_end)

    def close_read(self) -> None:
        """Nobody reads any more: the engine's next write fails and ends the statement."""
        if self._transport is not None:
            self._transport.close()
        else:
            self._read.close()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """What comes out, until the statement is over."""
        reader = asyncio.StreamReader(limit=PIPE_SIZE)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._read
        )
        try:
            while piece := await reader.read(PIPE_SIZE):
                yield piece
        finally:
            self._transport.close()


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def _incoming(receive: Receive) -> AsyncGenerator[bytes, None]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            return


def _timeout(request: Request) -> float:
    try:
        wanted = float(request.own.get("session_timeout", DEFAULT_TIMEOUT_S))
    except ValueError:
        wanted = DEFAULT_TIMEOUT_S
    return min(max(wanted, 0.0), MAX_TIMEOUT_S)
