"""A real Mosquitto broker for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from tests.support.wait import wait_until


class RunningMosquitto:
    """``mosquitto`` as a process of its own on a free port of 127.0.0.1.

    Args:
        password: when given, only the user ``rackpulse`` with it may connect.
    """

    def __init__(self, folder: Path, port: int, password: str | None = None) -> None:
        self.port = port
        self._folder = folder
        self._config = folder / "mosquitto.conf"
        lines = [f"listener {port} 127.0.0.1", "persistence false"]
        if password is None:
            lines.append("allow_anonymous true")
        else:
            users = folder / "users"
            users.write_text(f"rackpulse:{password}\n")
            users.chmod(0o600)
            subprocess.run(["mosquitto_passwd", "-U", str(users)], check=True)
            lines += ["allow_anonymous false", f"password_file {users}"]
            # Started by root it gives its rights away, and could not read the file then.
            lines.append("user root")
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RunningMosquitto:
        """Start it and wait until it listens."""
        program = shutil.which("mosquitto") or "mosquitto"
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self._config)], stdout=log, stderr=log
            )
        wait_until(self._listens, "mosquitto to listen")
        return self

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "mosquitto.log").read_text()[-2000:])
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def __enter__(self) -> RunningMosquitto:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
