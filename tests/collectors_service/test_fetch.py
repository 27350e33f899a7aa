"""A connection is kept from one read to the next, and may be gone by then."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.clock import SystemClock
from pipeline.collectors.fetch import FetcherFactory, FetchError
from pipeline.collectors.targets import Target

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n"


class Server:
    """Answers ``answers`` requests on each connection, then hangs up on the next one.

    Attributes:
        connections: how many there were.
        requests: how many came.
    """

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.connections = self.requests = 0

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for number in range(self.answers + 1):
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            self.requests += 1
            if number < self.answers:
                writer.write(PAGE)
                await writer.drain()
        writer.close()


async def read(server: Server, times: int) -> list[bytes | str]:
    """What each of several reads gave: the body, or why there is none."""
    listening = await asyncio.start_server(server.client, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    target = Target(name="t", kind="dcgm", url=f"http://127.0.0.1:{port}/", interval_s=60)
    fetcher = FetcherFactory(SystemClock()).make(target)
    found: list[bytes | str] = []
    async with listening:
        for _ in range(times):
            try:
                found.append((await fetcher.fetch()).body)
            except FetchError as exc:
                found.append(exc.reason)
        await fetcher.close()
    return found


def test_a_connection_is_kept() -> None:
    server = Server(10)
    assert asyncio.run(read(server, 5)) == [b"a 1\n"] * 5
    assert server.connections == 1


@pytest.mark.parametrize("answers", [1, 2])
def test_an_exporter_that_hangs_up_on_a_kept_connection_is_well(answers: int) -> None:
    server = Server(answers)
    assert asyncio.run(read(server, 4)) == [b"a 1\n"] * 4
    assert server.connections == 4 // answers


def test_an_exporter_that_always_hangs_up_is_asked_once() -> None:
    server = Server(0)
    assert asyncio.run(read(server, 3)) == ["bad_answer"] * 3
    assert server.requests == 3
