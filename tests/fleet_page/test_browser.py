"""The page in a real browser, fed by a stand-in for its API."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.fleet_page import MEDIA_TYPES, security, static_file

EVIL = "<img src=x onerror=document.title='owned'>"
STATE: dict[str, Any] = {
    "now": "2026-11-30T03:20:00Z", "cluster": "main", "csrf": "t", "can_change": True,
    "racks": [{
        "rack": "rack-01", "gpus": 70, "gpus_expected": 72, "age_s": 3.0, "gpu_power_kw": 79.3,
        "hottest_c": 50.5, "sm_active_percent": None, "supply_c": 32.0, "flow_lpm": 61.5,
        "delta_k": 9.1, "jobs": [EVIL], "status": "warning", "silenced": True,
    }],
    "incidents": [{
        "id": "inc-1", "state": "open", "cluster": "main", "detector": "straggler_gpu",
        "kind": "gpu", "entity": "GPU-1", "name": f"rack-01 tray 7 {EVIL}",
        "location": {"rack": "rack-01", "tray": 7}, "severity": "warning",
        "cause": "capped_clocks", "confidence": 0.92, "summary": EVIL,
        "evidence": [{"feature": "sm_clock_mhz", "label": "SM clock", "value": 1290.0,
                      "peer_median": 1830.0, "unit": "MHz", "minutes": 4}],
        "peers": {"group": "same job and role", "size": 71}, "action": "Look for a power cap",
        "members": [], "model": "v1", "opened_at": "2026-11-30T03:12:00Z", "resolved_at": None,
        "updated_at": "2026-11-30T03:12:00Z", "age_s": 480.0, "drill": False,
    }],
    "resolved": [], "detectors": [], "silences": [], "streams": [],
    "alerts": {"delivered": 2, "failed": 1, "gave_up": 0},
}  # fmt: skip


@pytest.fixture
def address() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.split("?")[0].removeprefix("/rackpulse/")
            if path == "api/fleet":
                self._answer(json.dumps(STATE), "application/json")
            elif path == "fleet":
                self._answer(static_file("fleet.html"), "text/html; charset=utf-8")
            else:
                name = path.removeprefix("static/")
                self._answer(static_file(name), MEDIA_TYPES[name])

        def _answer(self, text: str, kind: str) -> None:
            self.send_response(200)
            for name, value in {**security.HEADERS, "content-type": kind}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/rackpulse/fleet"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.browser
def test_draws_the_fleet_and_takes_names_for_text(address: str, tmp_path: Path) -> None:
    browser = next(
        found for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    )  # fmt: skip
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path}", "--virtual-time-budget=5000",
            "--dump-dom", address,
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    page = done.stdout
    assert "<title>Fleet · rackpulse</title>" in page, done.stderr[-2000:]
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=") == 2  # name and job
    for words in (
        "capped clocks · 92 % sure", "1,290 MHz", "1,830 MHz", "−30 %", "71 peers: same job",
        "Look for a power cap", "open for 8 min", "70 of 72", "silenced", "alerts not taken",
    ):  # fmt: skip
        assert words in page, words
