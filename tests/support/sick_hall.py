"""The virtual hall as a process of its own, some of whose exporters are sick."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.clock import SystemClock
from pipeline.hall.app import HallApp
from pipeline.hall.fleet import build_fleet
from pipeline.hall.live import LiveHall

SEED = 1


class Sick:
    """Answers for some hosts as sick exporters do.

    Modes: ``hang`` never answers; ``500``; ``cut`` ends early though it promised more;
    ``frozen`` gives the first page for ever.
    """

    def __init__(self, app: ASGIApp, modes: Mapping[str, str]) -> None:
        self._app = app
        self._modes = modes
        self._first: dict[str, list[Message]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").split("/")
        mode = self._modes.get(path[2]) if path[1:2] == ["dcgm"] and len(path) > 2 else None
        if mode is None:
            await self._app(scope, receive, send)
        elif mode == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
        elif mode == "500":
            await _send(send, 500, b"internal server error\n")
        elif mode == "cut":
            await self._cut(scope, receive, send)
        else:
            await self._frozen(path[2], scope, receive, send)

    async def _page(self, scope: Scope, receive: Receive) -> list[Message]:
        said: list[Message] = []

        async def keep(message: Message) -> None:
            said.append(message)

        await self._app(scope, receive, keep)
        return said

    async def _cut(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, body, *_ = await self._page(scope, receive)
        await send(start)
        await send({**body, "body": body["body"][: len(body["body"]) // 2]})

    async def _frozen(self, host: str, scope: Scope, receive: Receive, send: Send) -> None:
        if host not in self._first:
            said = await self._page(scope, receive)
            if said[0]["status"] == 200:
                self._first[host] = said
        else:
            said = self._first[host]
        for message in said:
            await send(message)


async def _send(send: Send, status: int, body: bytes) -> None:
    length = str(len(body)).encode()
    await send({
        "type": "http.response.start", "status": status,
        "headers": [(b"content-type", b"text/plain"), (b"content-length", length)],
    })  # fmt: skip
    await send({"type": "http.response.body", "body": body})


class SickHall:
    """A hall that is served while the block runs.

    Args:
        folder: for its state.
        modes: mode by host; the others are well.
    """

    def __init__(self, folder: Path, racks: int, modes: Mapping[str, str]) -> None:
        file = folder / "modes.json"
        file.write_text(json.dumps(dict(modes)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sick_hall", str(folder), str(racks), str(file)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def __enter__(self) -> SickHall:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def hosts(racks: int) -> tuple[str, ...]:
    """Names of the hall's hosts: 18 to a rack."""
    return tuple(build_fleet(racks, SEED).hosts)


def _main(folder: Path, racks: int, modes: dict[str, Any]) -> None:
    live = LiveHall(build_fleet(racks, SEED), SystemClock(), folder / "state.npz")
    app = Sick(HallApp(live).starlette(), modes)
    # Cutting an answer short is an error to the server, and meant here.
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", access_log=False, backlog=4096,
        timeout_keep_alive=60, timeout_graceful_shutdown=1,
    )  # fmt: skip
    sock = config.bind_socket()
    server = uvicorn.Server(config)

    async def serve() -> None:
        running = asyncio.create_task(server.serve(sockets=[sock]))
        print(sock.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await running

    asyncio.run(serve())


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
