"""The response: status, ClickHouse's headers, body."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO

from starlette.types import Send

from pipeline.store.server.codec import Encoder
from pipeline.store.server.engine import Done, Engine
from pipeline.store.server.failure import StoreError

PIECE = 1 << 20
# An error that comes before this many bytes still gets a status of its own.
HOLD = 1 << 18

_CONTENT_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "Arrow": "application/octet-stream",
    "ArrowStream": "application/octet-stream",
    "Native": "application/octet-stream",
    "RowBinary": "application/octet-stream",
    "RowBinaryWithNamesAndTypes": "application/octet-stream",
    "Parquet": "application/octet-stream",
}


class Answer:
    """One response.

    Args:
        compress: runs the encoder's work outside the event loop.

    Attributes:
        coding: content coding that the client accepts and we use.
        encoder: its encoder; errors are sent in it as well.
        last: the connection ends with this response.
    """

    def __init__(
        self,
        engine: Engine,
        send: Send,
        compress: Callable[[Callable[[], bytes]], Awaitable[bytes]],
    ) -> None:
        self._engine = engine
        self._send = send
        self._compress = compress
        self._started = False
        self._tag = secrets.token_hex(8)
        self.query_id = ""
        self.last = False
        self.coding: str | None = None
        self.encoder: Encoder | None = None

    async def _start(
        self, status: int, *, done: Done | None = None, format: str | None = None,
        code: int | None = None, streamed: bool = False,
    ) -> None:  # fmt: skip
        headers = {
            "Content-Type": _CONTENT_TYPES.get(format or "", "text/plain; charset=UTF-8"),
            "X-ClickHouse-Server-Display-Name": "rackpulse",
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        if self.last:
            headers["Connection"] = "close"
        if self.query_id:
            headers["X-ClickHouse-Query-Id"] = self.query_id
        if format:
            headers["X-ClickHouse-Format"] = format
        if done is not None:
            headers["X-ClickHouse-Summary"] = _summary(done)
        if streamed:
            headers["X-ClickHouse-Exception-Tag"] = self._tag
        if code is not None:
            headers["X-ClickHouse-Exception-Code"] = str(code)
        if code == 516:
            headers["WWW-Authenticate"] = 'Basic realm="rackpulse"'
        if self.coding and self.encoder:
            headers["Content-Encoding"] = self.coding
        self._started = True
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _body(self, piece: bytes, *, last: bool = False) -> None:
        encoder = self.encoder
        if encoder is not None and (piece or last):

            def work() -> bytes:
                return encoder.feed(piece) + (encoder.finish() if last else b"")

            piece = await self._compress(work) if len(piece) > 4096 else work()
        if piece or last:
            await self._send({"type": "http.response.body", "body": piece, "more_body": not last})

    async def text(self, text: str, status: int = 200) -> None:
        """A short text."""
        self.encoder = None
        await self._start(status)
        await self._body(text.encode(), last=True)

    async def fail(self, error: StoreError) -> None:
        """An error: with its status, or in ClickHouse's block where the answer has begun.

        In the second case the response stays without its end, so that no client takes it
        for complete.
        """
        if not self._started:
            await self._start(error.status, code=error.code)
            await self._body(f"{error.text}\n".encode(), last=True)
            return
        text = f"{error.text}\n".encode()
        block = b"\r\n__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (
            self._tag.encode(),
            text,
            len(text),
            self._tag.encode(),
        )
        if self.encoder is not None:
            block = self.encoder.feed(block) + self.encoder.finish()
        await self._send({"type": "http.response.body", "body": block, "more_body": True})

    async def done(self, done: Done, format: str | None = None) -> None:
        """A statement that is over, with its short answer."""
        await self._start(200, done=done, format=format)
        await self._body(done.answer, last=True)

    async def held(self, done: Done, format: str, held: IO[bytes]) -> None:
        """An answer that is complete."""
        held.seek(0)
        await self._start(200, done=done, format=format)
        while piece := held.read(PIECE):
            await self._body(piece)
        await self._body(b"", last=True)

    async def stream(
        self, job: asyncio.Future[Done], format: str, pieces: AsyncIterator[bytes]
    ) -> None:
        """An answer that is sent as it comes.

        Raises:
            StoreError: the statement failed; :meth:`fail` tells the client.
        """
        first = bytearray()
        async for piece in pieces:
            if not self._started:
                first += piece
                if len(first) < HOLD:
                    continue
                await self._start(200, format=format, streamed=True)
                piece = bytes(first)
            await self._body(piece)
        done = await job
        if self._started:
            await self._body(b"", last=True)
            return
        await self._start(200, done=done, format=format)
        await self._body(bytes(first), last=True)


def _summary(done: Done) -> str:
    return json.dumps(
        {
            "read_rows": str(done.rows_read),
            "read_bytes": str(done.bytes_read),
            "written_rows": str(done.rows_written),
            "written_bytes": str(done.bytes_written),
            "total_rows_to_read": str(done.rows_read),
            "result_rows": str(done.rows_written or done.rows_answered),
            "result_bytes": str(done.bytes_written or done.bytes_answered),
            "elapsed_ns": str(int(done.elapsed_s * 1e9)),
        }
    )
