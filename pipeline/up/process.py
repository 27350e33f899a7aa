"""One supervised process: started in a session of its own, marked, logged, stopped by its id.

Every process and its children carry the run's mark in their environment, so that what an
earlier run left behind (its supervisor was killed with -9) is found and ended, and nothing
else ever is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pipeline.clock import Clock

MARK = "RACKPULSE_UP_RUN"
_LOG_LIMIT_BYTES = 20_000_000


def rackpulse_command(*arguments: str) -> tuple[str, ...]:
    """The command that runs this program with these arguments."""
    return (sys.executable, "-m", "pipeline", *arguments)


@dataclass(frozen=True)
class ServiceSpec:
    """What a service is.

    Attributes:
        argv: the command; :func:`rackpulse_command` makes one of this program.
        ready: None when the service does its work, else what it waits for.
        start_timeout_s: how long it may take to become ready.
        stop_signal: what asks it to end.
        stop_grace_s: how long it may take to end before it is killed.
        on_console: its standard output is for the person, not for the log.
        url: address to show.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], str | None]
    start_timeout_s: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 20.0
    on_console: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None


class ServiceProcess:
    """A running (or restarting) service."""

    def __init__(self, spec: ServiceSpec, log: Path, env: Mapping[str, str], clock: Clock) -> None:
        self.spec = spec
        self.log = log
        self._env = {**env, **spec.env}
        self._clock = clock
        self._process: subprocess.Popen[str] | None = None
        self.state = "stopped"
        self.restarts = 0
        self._retry_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def console(self) -> IO[str] | None:
        """Standard output of a service that speaks to the person."""
        return self._process.stdout if self._process and self.spec.on_console else None

    def start(self) -> None:
        """Start the process; its output is appended to the log."""
        if self._process:
            # What a killed process left of its session would hold ports and locks.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                list(self.spec.argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.spec.on_console else out,
                stderr=out,
                env=self._env,
                start_new_session=True,
                text=True,
                bufsize=1,
            )
        self.state = "starting"

    def exit_code(self) -> int | None:
        """The exit code once it has ended, else None."""
        return self._process.poll() if self._process else None

    def watch(self) -> bool:
        """Start it again when it has ended; True when it was restarted just now.

        The pause doubles with each restart, up to half a minute.
        """
        code = self.exit_code()
        if code is None:
            if self.state == "starting" and self.spec.ready() is None:
                self.state = "running"
            return False
        now = self._clock.monotonic()
        if self.state in ("running", "starting"):
            self.state = f"restarting (exit {code})"
            self._retry_at = now + min(30.0, 2.0 ** min(self.restarts, 5))
            self.restarts += 1
            return False
        if now >= self._retry_at:
            self.start()
            return True
        return False

    def ask_to_stop(self) -> None:
        """Send the stop signal to the process itself, which ends its own children."""
        if self._process and self._process.poll() is None:
            self.state = "stopping"
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(self.spec.stop_signal)

    def wait_or_kill(self, grace_s: float | None = None) -> None:
        """Wait for the end; kill the whole session when it takes too long."""
        if not self._process:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.spec.stop_grace_s if grace_s is None else grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # Its children are not ours to wait for: look until the kernel has ended them.
        deadline = self._clock.monotonic() + 5.0
        while self._session_lives() and self._clock.monotonic() < deadline:
            self._clock.wait(0.02)
        self.state = "stopped"

    def _session_lives(self) -> bool:
        assert self._process
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, IndexError):
                # After the name in brackets: state, parent, process group.
                state, _, group = entry.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self._process.pid and state not in "ZX":
                    return True
        return False

    def last_lines(self, count: int = 15) -> str:
        """The end of the log, for a message about a failed start."""
        if not self.log.exists():
            return ""
        text = self.log.read_bytes()[-8192:].decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-count:])


def marked_processes(run_id: str) -> list[int]:
    """Ids of the living processes that carry this run's mark in their environment."""
    needle = f"{MARK}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_leftovers(run_id: str, clock: Clock, grace_s: float = 10.0) -> list[int]:
    """End what an earlier run left behind: first asked, then killed.

    Returns:
        The ids of the processes that were found.
    """
    found = marked_processes(run_id)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = clock.monotonic() + grace_s
    while marked_processes(run_id) and clock.monotonic() < deadline:
        clock.wait(0.2)
    for pid in marked_processes(run_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
