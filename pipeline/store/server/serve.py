"""The store's process: folder, users, socket, server."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import uvicorn

from pipeline.clock import Clock, SystemClock
from pipeline.errors import RackpulseError
from pipeline.listening import HOST, listen
from pipeline.memory import keep_large_pieces
from pipeline.settings import Settings
from pipeline.store.local import (
    Endpoint,
    endpoint_file,
    ensure_users,
    read_endpoint,
    store_folder,
    write_private,
)
from pipeline.store.server.app import App
from pipeline.store.server.engine import Engine
from pipeline.store.server.incoming import Scratch

log = logging.getLogger(__name__)
DEFAULT_PORT = 18123
# How long running statements may go on after a signal, in seconds.
GRACE_S = 5
# Bytes of request line and headers: statements may stand in the URL.
MAX_HEAD = 1 << 20


def serve(
    settings: Settings,
    port: int = DEFAULT_PORT,
    clock: Clock | None = None,
    ready: Callable[[Endpoint], None] | None = None,
) -> None:
    """Serve the embedded store until SIGTERM or SIGINT.

    Args:
        port: 0 takes a free one.
        ready: called with the endpoint when clients can come.

    Raises:
        RackpulseError: the folder or the port is in use; the text says by what.
    """
    keep_large_pieces()
    folder = store_folder(settings.state_dir)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _lock(folder), listen(port) as listener:
        users = ensure_users(settings.state_dir)
        scratch = folder / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        engine = Engine(folder / "data")
        app = App(engine, users, Scratch(scratch), clock or SystemClock())
        endpoint = Endpoint(host=HOST, port=listener.getsockname()[1], pid=os.getpid())
        config = uvicorn.Config(
            app, http="h11", loop="asyncio", ws="none", lifespan="off", access_log=False,
            log_config=None, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=4 * GRACE_S, timeout_keep_alive=30,
            h11_max_incomplete_event_size=MAX_HEAD,
        )  # fmt: skip
        server = _Server(config, engine.stop_all)
        if threading.current_thread() is threading.main_thread():
            # uvicorn puts back what it found: a second signal must not tear the engine down.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, server.handle_exit)
        logging.getLogger("uvicorn.error").addFilter(_expected)
        # The socket listens already: who reads the endpoint may connect at once.
        write_private(endpoint_file(settings.state_dir), endpoint.model_dump())
        log.info("the store listens on http://%s:%d", endpoint.host, endpoint.port)
        if ready is not None:
            ready(endpoint)
        try:
            server.run(sockets=[listener])
        finally:
            endpoint_file(settings.state_dir).unlink(missing_ok=True)
            app.close()
            engine.close()
            log.info("the store is closed")


def _expected(record: logging.LogRecord) -> bool:
    """Leave out uvicorn's surprise at answers that are cut on purpose, after an error."""
    return "without completing response" not in record.getMessage()


class _Server(uvicorn.Server):
    """uvicorn, ending in order: what runs gets a while, then it is cancelled."""

    def __init__(self, config: uvicorn.Config, cancel: Callable[[], None]) -> None:
        super().__init__(config)
        self._cancel = cancel

    def handle_exit(self, sig: int, frame: object) -> None:
        # uvicorn's own would raise the signal once more at the end.
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        async def late() -> None:
            await asyncio.sleep(GRACE_S)
            log.info("statements still run after %d s: they are cancelled", GRACE_S)
            await asyncio.to_thread(self._cancel)

        canceller = asyncio.ensure_future(late())
        await super().shutdown(sockets)
        canceller.cancel()


def _lock(folder: Path) -> IO[str]:
    file = (folder / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        file.close()
        endpoint = read_endpoint(folder.parent)
        who = (
            f" (process {endpoint.pid}, http://{endpoint.host}:{endpoint.port})" if endpoint else ""
        )
        raise RackpulseError(
            f"Another store{who} holds {folder}: stop it first, or set another RACKPULSE_STATE_DIR"
        ) from exc
    return file
