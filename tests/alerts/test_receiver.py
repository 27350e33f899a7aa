from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from pipeline.alerts import render, signing
from pipeline.alerts.receiver import Received, receiving
from pipeline.errors import RackpulseError
from tests.alerts.helpers import alert

BODY = render.as_bytes(render.generic(alert()))


class Inbox:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "webhook-secret"
        self.keys = signing.load_secrets(self.path, create=True)
        self.taken: list[Received] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, body: bytes = BODY, **headers: str) -> httpx.Response:
        signed = signing.sign("tr-1", datetime.now(UTC), body, self.keys)
        return httpx.post(self.url, content=body, headers=signed | headers, trust_env=False)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    found = Inbox(tmp_path)
    with receiving(0, lambda: signing.load_secrets(found.path), found.taken.append) as port:
        found.port = port
        yield found


def test_takes_a_signed_message_and_knows_a_repeat(inbox: Inbox) -> None:
    assert inbox.post().status_code == 204
    assert inbox.post().status_code == 204
    assert [item.repeat for item in inbox.taken] == [False, True]
    assert inbox.taken[0].message_id == "tr-1"
    assert inbox.taken[0].body == json.loads(BODY)


@pytest.mark.parametrize(
    "headers",
    [
        {"webhook-signature": "v1,bm90IG91cnM="},
        {"webhook-signature": "nonsense"},
        {"webhook-id": "another"},
        {"webhook-timestamp": "12"},
        {"webhook-timestamp": "x"},
    ],
)
def test_refuses_what_is_not_signed(inbox: Inbox, headers: dict[str, str]) -> None:
    assert inbox.post(**headers).status_code == 401
    assert inbox.taken == []


def test_refuses_without_any_header(inbox: Inbox) -> None:
    assert httpx.post(inbox.url, content=BODY, trust_env=False).status_code == 401
    assert inbox.taken == []


def test_refuses_what_is_no_object(inbox: Inbox) -> None:
    assert inbox.post(b"[1]").status_code == 400
    assert inbox.post(b"{").status_code == 400
    assert inbox.taken == []


def test_a_rotation_needs_no_restart(inbox: Inbox) -> None:
    signing.rotate(inbox.path)
    inbox.keys = signing.load_secrets(inbox.path)[:1]
    assert inbox.post().status_code == 204


def test_refuses_too_much_before_reading_it(inbox: Inbox) -> None:
    with socket.create_connection(("127.0.0.1", inbox.port), timeout=5) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_refuses_a_body_without_a_length(inbox: Inbox) -> None:
    answer = httpx.post(inbox.url, content=iter([b"{}"]), trust_env=False)
    assert answer.status_code == 411


def test_health(inbox: Inbox) -> None:
    assert httpx.get(f"{inbox.url}/readyz", trust_env=False).text == "ok\n"
    assert httpx.get(f"{inbox.url}/livez", trust_env=False).status_code == 200
    assert httpx.get(f"{inbox.url}/other", trust_env=False).status_code == 404


def test_a_taken_port_is_said(inbox: Inbox) -> None:
    with (
        pytest.raises(RackpulseError, match=f"Port {inbox.port} is taken"),
        receiving(inbox.port, list, inbox.taken.append),
    ):
        pass
