"""What every long-running process shares: a stop event, a heartbeat, and its HTTP page.

The page answers ``/livez`` (the loop moved lately), ``/readyz`` (it can do its work) and
``/metrics`` (Prometheus text), on 127.0.0.1 by default.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

from pipeline.clock import Clock, SystemClock
from pipeline.errors import RackpulseError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; the loop looks at it and ends in order."""
    stop = threading.Event()

    def _set(_signum: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, _set)
    signal.signal(signal.SIGINT, _set)
    return stop


def setup_logging(log_format: str = "text") -> None:
    """Log to stderr, one line per event; ``json`` gives one object per line."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("kafka", "httpx", "httpcore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class Health:
    """What a service's loop says of itself.

    Args:
        stuck_after_s: the loop is called stuck when it has not beaten for so long.
    """

    def __init__(self, clock: Clock | None = None, stuck_after_s: float = 60.0) -> None:
        self._clock = clock or SystemClock()
        self._stuck_after_s = stuck_after_s
        self._last_beat = self._clock.monotonic()
        self._not_ready: str | None = "starting"

    def beat(self) -> None:
        """The loop went round once more."""
        self._last_beat = self._clock.monotonic()

    def ready(self) -> None:
        """The service can do its work."""
        self._not_ready = None

    def not_ready(self, reason: str) -> None:
        """The service waits for something; the reason is shown."""
        self._not_ready = reason

    def live(self) -> tuple[bool, str]:
        """Whether the loop moves, and a word about it."""
        age = self._clock.monotonic() - self._last_beat
        if age > self._stuck_after_s:
            return False, f"stuck: no progress for {age:.0f} s"
        return True, "ok"

    def is_ready(self) -> tuple[bool, str]:
        """Whether the service can do its work, and the reason if it cannot."""
        alive, text = self.live()
        if not alive:
            return False, text
        return self._not_ready is None, self._not_ready or "ok"


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def health_page(
    health: Health, registry: CollectorRegistry, port: int, host: str = "127.0.0.1"
) -> Iterator[int]:
    """Serve the page in a thread while the block runs.

    Args:
        port: 0 takes a free one.

    Yields:
        The port in use.

    Raises:
        RackpulseError: the port is taken.
    """
    metrics = make_wsgi_app(registry)

    def _answer(check: Callable[[], tuple[bool, str]], start: StartResponse) -> Iterable[bytes]:
        good, text = check()
        start(
            "200 OK" if good else "503 Service Unavailable",
            [("Content-Type", "text/plain; charset=utf-8")],
        )
        return [f"{text}\n".encode()]

    def app(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/livez":
            return _answer(health.live, start)
        if path == "/readyz":
            return _answer(health.is_ready, start)
        if path == "/metrics":
            found: Iterable[bytes] = metrics(environ, start)
            return found
        start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"Here are /livez, /readyz and /metrics\n"]

    try:
        server: WSGIServer = make_server(host, port, app, handler_class=_QuietHandler)
    except OSError as exc:
        raise RackpulseError(
            f"Port {port} cannot be used ({exc.strerror}): choose another one with "
            "--metrics-port; 0 takes a free one"
        ) from exc
    thread = threading.Thread(target=server.serve_forever, name="health-page", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
