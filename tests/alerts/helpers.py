"""Alerts and a receiver whose answers a test chooses."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from clickhouse_connect.driver.client import Client

from pipeline.alerts.model import COLUMNS, Alert, from_row

START = datetime(2026, 11, 30, 3, 12, tzinfo=UTC)


def rng() -> random.Random:
    """The same jitter in every run."""
    return random.Random(1)  # noqa: S311  # no secret


def row(**changes: Any) -> dict[str, Any]:
    """A row of telemetry.incident_transition: a GPU whose clocks are capped."""
    found: dict[str, Any] = {
        "transition_id": "tr-1",
        "incident_id": "inc-1",
        "transition": "opened",
        "at": START + timedelta(seconds=20),
        "window_end": START,
        "cluster": "main",
        "detector": "straggler_gpu",
        "entity_kind": "gpu",
        "entity_id": "GPU-5d1e",
        "entity_name": "rack-03 tray 7 GPU 2",
        "location": json.dumps({"rack": "rack-03", "tray": 7, "slot": 2}),
        "severity": "warning",
        "cause": "capped_clocks",
        "cause_confidence": 0.92,
        "summary": "GPU rack-03 tray 7 GPU 2: clocks capped. SM clock 1,290 MHz (peers 1,830).",
        "evidence": json.dumps(
            [
                {
                    "feature": "sm_clock_mhz", "label": "SM clock", "value": 1290.0,
                    "peer_median": 1830.0, "unit": "MHz", "direction": "below", "minutes": 4,
                    "z": -14.2,
                },
                {
                    "feature": "throttle_share", "label": "time throttled", "value": 0.85,
                    "peer_median": 0.0, "unit": "share", "direction": "above", "minutes": 4,
                    "z": 31.0,
                },
            ]
        ),
        "peers": json.dumps({"group": "same job and role", "size": 71}),
        "suggested_action": "Look for a power cap: nvidia-smi -q -d PERFORMANCE",
        "members": "[]",
        "model_version": "v1",
        "score": 9.5,
        "opened_at": START,
        "resolved_at": None,
        "drill": False,
    }  # fmt: skip
    unknown = set(changes) - set(found)
    assert not unknown, unknown
    return found | changes


def alert(**changes: Any) -> Alert:
    """The alert of :func:`row`."""
    return from_row(row(**changes))


def insert(client: Client, *rows: dict[str, Any]) -> None:
    """Store transitions."""
    client.insert(
        "telemetry.incident_transition",
        [[item[name] for name in COLUMNS] for item in rows],
        column_names=list(COLUMNS),
    )


@dataclass
class Request:
    """What the receiver was sent."""

    body: bytes
    headers: dict[str, str]
    path: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Script:
    """How the receiver answers: one entry per request, then ``last`` for ever.

    Attributes:
        on_request: called before the answer, such as to kill the sender.
        drip: the answer's body never ends; a byte comes now and then.
    """

    answers: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)
    last: tuple[int, Mapping[str, str]] = (200, {})
    requests: list[Request] = field(default_factory=list)
    on_request: Any = None
    hang: threading.Event | None = None
    drip: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.requests]


@contextmanager
def scripted(script: Script, port: int = 0) -> Iterator[Script]:
    """A real HTTP server that answers as the script says."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                script.requests.append(Request(body, headers, self.path))
                status, extra = script.answers.pop(0) if script.answers else script.last
            if script.on_request is not None:
                script.on_request()
            if script.hang is not None:
                script.hang.wait(30)
                return
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.end_headers()
            while script.drip and not script.over.wait(0.05):
                try:
                    self.wfile.write(b".")
                    self.wfile.flush()
                except OSError:
                    return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    script.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield script
    finally:
        script.over.set()
        if script.hang is not None:
            script.hang.set()
        script.drip = False
        server.shutdown()
        server.server_close()
        thread.join(5)
