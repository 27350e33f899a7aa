"""A small receiver of webhooks: checks signatures, knows repeats, prints alerts."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipeline.alerts.signing import is_signed
from pipeline.errors import RackpulseError

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 256_000
_REMEMBERED = 10_000
_SOCKET_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Received:
    """A message that was taken.

    Attributes:
        repeat: the same ``webhook-id`` was taken before.
    """

    message_id: str
    body: dict[str, Any]
    repeat: bool


class _Memory:
    """The last message ids, bounded."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def is_repeat(self, message_id: str) -> bool:
        with self._lock:
            known = message_id in self._seen
            self._seen[message_id] = None
            self._seen.move_to_end(message_id)
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            return known


@contextmanager
def receiving(
    port: int, keys: Callable[[], Sequence[str]], take: Callable[[Received], None]
) -> Iterator[int]:
    """Receive on 127.0.0.1 while the block runs.

    Args:
        port: 0 takes a free one.
        keys: the signing secrets; asked at each message, so that a rotation needs no restart.
        take: called for each signed message, one at a time.

    Yields:
        The port in use.

    Raises:
        RackpulseError: the port is taken.
    """
    memory = _Memory()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = _SOCKET_TIMEOUT_S
        protocol_version = "HTTP/1.1"
        server_version = "rackpulse"
        sys_version = ""

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            good = self.path in ("/livez", "/readyz")
            self._answer(HTTPStatus.OK if good else HTTPStatus.NOT_FOUND, "ok" if good else "?")

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not length.isdigit() or self.headers.get("transfer-encoding"):
                self._answer(HTTPStatus.LENGTH_REQUIRED, "send a content-length", close=True)
                return
            if int(length) > _MAX_BODY_BYTES:
                self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large", close=True)
                return
            body = self.rfile.read(int(length))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if len(body) < int(length) or not is_signed(body, headers, keys()):
                log.warning("a message without a valid signature was refused")
                self._answer(HTTPStatus.UNAUTHORIZED, "the signature is missing or wrong")
                return
            try:
                found = json.loads(body)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                self._answer(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
                return
            message_id = headers["webhook-id"]
            with lock:
                take(Received(message_id, found, memory.is_repeat(message_id)))
            self._answer(HTTPStatus.NO_CONTENT, "")

        def _answer(self, status: HTTPStatus, text: str, *, close: bool = False) -> None:
            self.send_response(status)
            payload = f"{text}\n".encode() if text else b""
            if status != HTTPStatus.NO_CONTENT:
                self.send_header("content-type", "text/plain; charset=utf-8")
                self.send_header("content-length", str(len(payload)))
            if close:
                self.send_header("connection", "close")
                self.close_connection = True
            self.end_headers()
            if status != HTTPStatus.NO_CONTENT:
                self.wfile.write(payload)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            # Senders that hang up are theirs to worry about, not a traceback of ours.
            log.debug("a connection ended early", exc_info=True)

    try:
        server = Server(("127.0.0.1", port), Handler)
    except OSError as exc:
        raise RackpulseError(
            f"Port {port} is taken: stop what listens there, or give another with --port"
        ) from exc
    thread = threading.Thread(
        target=server.serve_forever, args=(0.1,), name="receiver", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
