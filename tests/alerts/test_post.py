from __future__ import annotations

import socket
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.alerts.post import Answer, post
from tests.alerts.helpers import Script, scripted

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def send(url: str, *, timeout_s: float = 5.0, allow_private: bool = True) -> Answer:
    return post(url, b"{}", {"x-test": "1"}, timeout_s=timeout_s, allow_private=allow_private,
                now=NOW)  # fmt: skip


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_only_2xx_is_delivered(status: int) -> None:
    with scripted(Script(last=(status, {}))) as script:
        answer = send(script.url)
    assert answer.delivered
    assert answer.error == ""
    assert script.requests[0].body == b"{}"
    assert script.requests[0].headers["x-test"] == "1"
    assert script.requests[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_others_are_not(status: int) -> None:
    with scripted(Script(last=(status, {"retry-after": "30"}))) as script:
        answer = send(script.url)
    assert not answer.delivered
    assert answer.status == status
    assert answer.error == f"HTTP {status}"
    assert answer.retry_after == timedelta(seconds=30)
    assert answer.slow_down == (status in (429, 503))
    assert not answer.gone


def test_gone() -> None:
    with scripted(Script(last=(410, {}))) as script:
        assert send(script.url).gone


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with scripted(Script()) as goal:
        with scripted(Script(last=(status, {"location": goal.url}))) as script:
            answer = send(script.url)
        assert not answer.delivered
        assert "redirects are not followed" in answer.error
        assert goal.requests == []


def test_a_receiver_that_hangs_is_left_in_time() -> None:
    with scripted(Script(hang=threading.Event())) as script:
        started = time.monotonic()
        answer = send(script.url, timeout_s=0.5)
        took = time.monotonic() - started
    assert answer.status == 0
    assert answer.error == "no answer within 0.5 s"
    assert answer.slow_down
    assert took < 3


def test_an_answer_that_never_ends_is_left_in_time() -> None:
    with scripted(Script(drip=True)) as script:
        started = time.monotonic()
        answer = send(script.url, timeout_s=0.5)
        took = time.monotonic() - started
    assert answer.status == 0
    assert took < 3


def test_nothing_listens(free_port: int) -> None:
    answer = send(f"http://127.0.0.1:{free_port}/hook?token=geheim")
    assert answer.status == 0
    assert "nothing listens there" in answer.error
    assert "geheim" not in answer.error


def test_a_connection_closed_without_an_answer() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def accept_and_close() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)

        thread = threading.Thread(target=accept_and_close)
        thread.start()
        answer = send(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()
    assert answer.status == 0
    assert answer.error


def test_private_addresses_only_where_they_are_allowed() -> None:
    with scripted(Script()) as script:
        answer = send(script.url, allow_private=False)
        assert script.requests == []
    assert answer.status == 0
    assert "not public" in answer.error


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "http://[::ffff:169.254.169.254]/",
    ],
)
def test_link_local_addresses_never(url: str) -> None:
    answer = send(url)
    assert answer.status == 0
    assert "may not be called" in answer.error


def test_what_a_receiver_says_cannot_play_with_the_terminal() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer_badly() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                body = b"\x1b[2J\x07oops\n\nmore"
                connection.sendall(
                    b"HTTP/1.1 500 x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
                )

        thread = threading.Thread(target=answer_badly)
        thread.start()
        answer = send(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()
    assert answer.error == "HTTP 500 [2J oops more"
