"""The commands as processes, against the real store and a real receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from clickhouse_connect.driver.client import Client

from tests.alerts.helpers import Script, insert, row, scripted
from tests.support.store import RunningStore
from tests.support.wait import wait_until


def command(store: RunningStore, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", "alerts", *arguments]


def environment(store: RunningStore) -> dict[str, str]:
    return {**os.environ, "RACKPULSE_STATE_DIR": str(store.settings.state_dir)}


def call(store: RunningStore, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(store, *arguments), env=environment(store), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


@contextmanager
def running(store: RunningStore, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command(store, *arguments), env=environment(store), stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        assert process.wait(20) in (0, -signal.SIGKILL), log.read_text()


def fresh(**changes: Any) -> dict[str, Any]:
    """A transition of just now: the commands go by the machine's clock."""
    now = datetime.now(UTC)
    return row(at=now, window_end=now, opened_at=now, **changes)


def delivered(client: Client) -> int:
    found = client.query(
        "SELECT count() FROM telemetry.alert_delivery WHERE outcome = 'delivered'"
    ).result_rows[0][0]
    return int(found)


def test_killed_between_the_post_and_its_note_it_sends_the_same_id_again(
    store: RunningStore, client: Client, tmp_path: Path
) -> None:
    insert(client, fresh())
    victims: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        if victims:
            with suppress(ProcessLookupError):
                victims.pop().kill()

    log = tmp_path / "deliver.log"
    with scripted(Script(on_request=kill)) as script:
        with running(store, log, "deliver", "--url", script.url) as process:
            victims.append(process)
            wait_until(lambda: process.poll() is not None, "the courier to be killed")
        assert len(script.requests) == 1
        assert delivered(client) == 0
        with running(store, log, "deliver", "--url", script.url):
            wait_until(lambda: delivered(client) == 1, "the second courier to deliver")
        assert script.ids() == ["tr-1", "tr-1"]
        assert script.requests[0].body == script.requests[1].body
    assert "whsec_" not in log.read_text()


def test_delivers_while_the_store_comes_and_goes(tmp_path: Path) -> None:
    log = tmp_path / "deliver.log"
    store = RunningStore(tmp_path)
    with scripted(Script()) as script:
        store.start()
        store.migrate()
        with store.client() as client:
            insert(client, fresh())
        port = _free_port()
        with running(store, log, "deliver", "--url", script.url, "--metrics-port", str(port)):
            wait_until(lambda: len(script.requests) == 1, "the first alert")
            wait_until(lambda: _ready(port) == 200, "the service to be ready")
            store.kill9()
            wait_until(lambda: _ready(port) == 503, "the service to miss the store")
            store.start()
            with store.client() as client:
                insert(client, fresh(transition_id="tr-2", incident_id="inc-2"))
                wait_until(lambda: len(script.requests) == 2, "the second alert")
                wait_until(lambda: delivered(client) == 2, "both notes")
            page = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
            assert 'rackpulse_alert_attempts_total{destination="webhook",outcome="delivered"}' in (
                page
            )
        store.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _ready(port: int) -> int:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code
    return 0


def test_from_the_outbox_to_the_terminal(
    store: RunningStore, client: Client, tmp_path: Path
) -> None:
    port = _free_port()
    printed, log = tmp_path / "printed", tmp_path / "deliver.log"
    with running(store, printed, "receive", "--port", str(port)):
        wait_until(lambda: _ready(port) == 200, "the receiver")
        insert(client, fresh(), fresh(transition_id="tr-2", incident_id="inc-2", drill=True))
        with running(store, log, "deliver", "--url", f"http://127.0.0.1:{port}/"):
            wait_until(lambda: delivered(client) == 2, "both alerts", timeout_s=30)
        answer = call(store, "test", "--url", f"http://127.0.0.1:{port}/")
        assert answer.returncode == 0, answer.stderr
        assert "HTTP 204" in answer.stdout
    text = printed.read_text()
    assert text.count("capped clocks (92%)") == 2
    assert text.count("DRILL") == 1
    assert "Test alert of rackpulse" in text
    listed = call(store, "list", "--json")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [item["outcome"] for item in rows] == ["delivered", "delivered"]
    assert {item["entity"] for item in rows} == {"rack-03 tray 7 GPU 2"}


def test_lists_and_retries_what_failed(store: RunningStore, client: Client, tmp_path: Path) -> None:
    log = tmp_path / "deliver.log"
    insert(client, fresh())
    with scripted(Script(answers=[(500, {})] * 2, last=(204, {}))) as script:
        with running(store, log, "deliver", "--url", script.url):
            wait_until(lambda: len(script.requests) >= 1, "the first attempt")
            wait_until(
                lambda: "failed (HTTP 500)" in call(store, "list").stdout, "the failure on the list"
            )
            wait_until(lambda: len(script.requests) == 2, "the second attempt")
            # The next would be due in 20 s.
            again = call(store, "retry", "--failed")
            assert again.stdout == "1 will be sent again\n", again.stderr
            wait_until(lambda: delivered(client) == 1, "the requeued alert", timeout_s=10)
        assert script.ids() == ["tr-1"] * 3
    unknown = call(store, "retry", "nonsense")
    assert unknown.returncode == 1
    assert "Nothing was sent under nonsense" in unknown.stderr


def test_switched_off_and_enabled_again(
    store: RunningStore, client: Client, tmp_path: Path
) -> None:
    log = tmp_path / "deliver.log"
    insert(client, fresh())
    port = _free_port()
    with (
        scripted(Script(answers=[(410, {})])) as script,
        running(store, log, "deliver", "--url", script.url, "--metrics-port", str(port)),
    ):
        wait_until(lambda: _ready(port) == 503, "the service to say so")
        text = wait_until(
            lambda: "410" in (found := httpx.get(
                f"http://127.0.0.1:{port}/readyz", trust_env=False).text) and found,
            "the reason",
        )  # fmt: skip
        assert text == "webhook: switched off: the receiver answered 410 Gone\n"
        assert call(store, "enable").stdout == "webhook is served again\n"
        wait_until(lambda: delivered(client) == 1, "the alert")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("deliver",), "RACKPULSE_WEBHOOK_URL"),
        (("deliver", "--url", "ftp://x/geheim"), "https://host/path"),
        (("deliver", "--url", "http://u:geheim@x/"), "must not hold a password"),
        (("retry",), "Give transition ids"),
    ],
)
def test_wrong_use_is_one_clear_line(
    store: RunningStore, arguments: tuple[str, ...], says: str
) -> None:
    answer = call(store, *arguments)
    assert answer.returncode == 1
    assert says in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "geheim" not in answer.stderr
