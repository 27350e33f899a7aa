"""A running embedded store for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from pipeline.settings import Settings
from pipeline.store import connect, migrate
from pipeline.store.local import Endpoint, Users, read_endpoint, read_users
from pipeline.streams import load_contracts
from tests.support.wait import wait_until


class RunningStore:
    """``rackpulse store serve`` as a process of its own, on a folder of a test.

    Args:
        folder: the state folder lies under it.
        port: 0 takes a free one at each start.

    Attributes:
        wrapper: command before the store's own, for the next start; it must keep the process id.
    """

    def __init__(self, folder: Path, port: int = 0, env: Mapping[str, str] | None = None) -> None:
        self.settings = Settings(state_dir=folder / "state")
        self.log = folder / "store.log"
        self._port = port
        self._env = dict(env or {})
        self.wrapper: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RunningStore:
        """Start it and wait until it answers."""
        assert self._process is None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "RACKPULSE_STATE_DIR": str(self.settings.state_dir), **self._env}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.wrapper, sys.executable, "-m", "pipeline", "store", "serve",
                 "--port", str(self._port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=env,
            )  # fmt: skip
        wait_until(self._is_up, timeout_s=60, what="the store to start")
        return self

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the store ended: {self.log.read_text()[-2000:]}")
        endpoint = read_endpoint(self.settings.state_dir)
        return endpoint is not None and endpoint.pid == self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it was started and has died by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Process id of the running store."""
        assert self._process is not None
        return self._process.pid

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        endpoint = read_endpoint(self.settings.state_dir)
        assert endpoint is not None
        return endpoint

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.endpoint.host}:{self.endpoint.port}"

    @property
    def users(self) -> Users:
        """Names and passwords."""
        return read_users(self.settings.state_dir)

    def client(self, **kwargs: Any) -> Client:
        """A client of the owner; ``role="analyst"`` for the other."""
        return connect(self.settings, **kwargs)

    def migrate(self) -> list[str]:
        """Make all tables."""
        with self.client() as client:
            return migrate(client, self.settings, load_contracts())

    def stop(self) -> int:
        """SIGTERM, and the exit code; does nothing when it is not running."""
        return self.end(signal.SIGTERM)

    def kill9(self) -> None:
        """SIGKILL."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and the exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
            raise

    def __enter__(self) -> RunningStore:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
