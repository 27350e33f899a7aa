"""Run Airflow's components on this machine: start, watch, stop.

What ``airflow standalone`` starts is started here component by component, because that
command leaves its children behind on SIGTERM, does not restart one that falls, and opens
two log servers on all of the machine's addresses. Logs are read from disk instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import httpx

from pipeline.airflow_local import sessions
from pipeline.airflow_local.home import AirflowHome, read_json, write_private
from pipeline.clock import Clock
from pipeline.errors import RackpulseError

log = logging.getLogger(__name__)

COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
# What the health page calls it: the component that answers for it.
_HEALTH_OF = {
    "metadatabase": "api-server",
    "scheduler": "scheduler",
    "dag_processor": "dag-processor",
    "triggerer": "triggerer",
}
_LOG_LIMIT_BYTES = 10_000_000


@contextmanager
def only_one(home: AirflowHome) -> Iterator[None]:
    """Hold Airflow's home while the block runs.

    Raises:
        RackpulseError: another process holds it.
    """
    with (home.path / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RackpulseError(
                f"Airflow already runs on {home.path}: stop that one first, or use another "
                "folder with RACKPULSE_STATE_DIR"
            ) from exc
        yield


class AirflowRun:
    """One run of Airflow's components.

    Args:
        env: environment of all of them, see :meth:`AirflowHome.environment`.
        port: of the UI.
        grace_s: how long they may take to end, in seconds, before they are killed.
    """

    def __init__(
        self,
        home: AirflowHome,
        env: Mapping[str, str],
        port: int,
        clock: Clock,
        grace_s: float = 20.0,
    ) -> None:
        self._home = home
        self._env = dict(env)
        self._port = port
        self._clock = clock
        self._grace_s = grace_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: list[sessions.Session] = []
        self._retry_at: dict[str, float] = {}
        self._restarts: dict[str, int] = {}

    def recover(self) -> int:
        """End what a run that was killed left behind; returns how many processes that were.

        Raises:
            RackpulseError: a process of that run cannot be ended.
        """
        known = read_json(self._home.run_file).get("sessions", [])
        left: list[sessions.Session] = []
        for item in known if isinstance(known, list) else []:
            with contextlib.suppress(TypeError):
                left.append(sessions.Session(**item))
        found = sessions.members(left)
        if found:
            sessions.end(left, self._clock, self._grace_s)
        if sessions.members(left):
            raise RackpulseError(
                f"Processes of an earlier Airflow run cannot be ended: {sessions.members(left)}. "
                "End them by hand and start again."
            )
        for stale in self._home.path.glob("*.pid"):
            stale.unlink(missing_ok=True)
        self._home.run_file.unlink(missing_ok=True)
        return len(found)

    def _start(self, name: str, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        path = self.log_of(name)
        path.parent.mkdir(exist_ok=True)
        if path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pipeline.airflow_local.launch",
                    str(os.getpid()),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                cwd=self._home.path,
                start_new_session=True,
            )
        self._sessions.append(sessions.of_process(process.pid))
        write_private(
            self._home.run_file, {"sessions": [asdict(session) for session in self._sessions]}
        )
        self._processes[name] = process
        return process

    def log_of(self, name: str) -> Path:
        """Where a component's output goes."""
        return self._home.path / "services" / f"{name}.log"

    def last_lines(self, name: str, count: int = 15) -> str:
        """The end of a component's output, for a message about its end."""
        with contextlib.suppress(OSError):
            text = self.log_of(name).read_bytes()[-8192:].decode("utf-8", "replace")
            return "\n".join(text.splitlines()[-count:])
        return ""

    def migrate(self, version: str, stop: threading.Event) -> bool:
        """Bring Airflow's own database to this version; skipped when it was done before.

        Returns:
            False when asked to stop in the middle.

        Raises:
            RackpulseError: it failed; the text holds the end of its output.
        """
        if (
            self._home.database.exists()
            and read_json(self._home.migrated_file).get("airflow") == version
        ):
            return True
        process = self._start("migrate", ("db", "migrate"))
        while process.poll() is None:
            if stop.wait(0.1):
                return False
        if process.returncode:
            raise RackpulseError(
                f"Airflow's database {self._home.database} could not be made ready "
                f"(exit code {process.returncode}):\n{self.last_lines('migrate')}\n"
                f"If it is damaged, remove {self._home.database}: it holds run history only."
            )
        del self._processes["migrate"]
        write_private(self._home.migrated_file, {"airflow": version})
        return True

    def start(self) -> None:
        """Start every component."""
        for name, arguments in COMPONENTS.items():
            self._start(name, arguments)

    def health(self) -> dict[str, str]:
        """What each component says of itself; empty while the API does not answer."""
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{self._port}/api/v2/monitor/health",
                timeout=5.0,
                follow_redirects=False,
                trust_env=False,
            )
            found = answer.json() if answer.status_code == 200 else {}
        except (httpx.HTTPError, json.JSONDecodeError):
            return {}
        return {
            name: str(state.get("status"))
            for name, state in found.items()
            if isinstance(state, dict)
        }

    def waiting_for(self) -> str | None:
        """None when every component is healthy, else what is waited for."""
        health = self.health()
        if not health:
            return "the API server"
        for part, name in _HEALTH_OF.items():
            if health.get(part) != "healthy":
                return f"the {name}"
        return None

    def ended(self) -> dict[str, int]:
        """Components that have ended, with their exit codes."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def watch(self) -> None:
        """Start again what has ended; the pause doubles each time, up to half a minute."""
        now = self._clock.monotonic()
        for name, code in self.ended().items():
            if name not in self._retry_at:
                tries = self._restarts.get(name, 0)
                self._restarts[name] = tries + 1
                self._retry_at[name] = now + min(30.0, 2.0**tries)
                log.warning(
                    "%s ended with exit code %s and is started again; the end of its log:\n%s",
                    name,
                    code,
                    self.last_lines(name, 5),
                )
                # Its workers may outlive it and would run tasks beside the new one's.
                sid = self._processes[name].pid
                orphans = [session for session in self._sessions if session.sid == sid]
                sessions.end(orphans, self._clock, 5.0)
                self._sessions = [s for s in self._sessions if s.sid != sid]
            elif now >= self._retry_at[name]:
                del self._retry_at[name]
                self._start(name, COMPONENTS[name])

    def wait_ready(self, stop: threading.Event, timeout_s: float = 240.0) -> bool:
        """Wait until every component is healthy.

        Returns:
            False when asked to stop in the meantime.

        Raises:
            RackpulseError: a component ended, or it took too long.
        """
        deadline = self._clock.monotonic() + timeout_s
        while not stop.wait(0.5):
            for name, code in self.ended().items():
                raise RackpulseError(
                    f"Airflow's {name} ended with exit code {code} while starting. "
                    f"Its log {self.log_of(name)} says:\n{self.last_lines(name)}"
                )
            waiting = self.waiting_for()
            if waiting is None:
                return True
            if self._clock.monotonic() > deadline:
                raise RackpulseError(
                    f"Airflow was not ready after {timeout_s:.0f} s: still waiting for {waiting}"
                )
        return False

    def keep(self, stop: threading.Event, sick_after_s: float = 180.0) -> None:
        """Watch until asked to stop; a component that hangs is ended and started again.

        Args:
            sick_after_s: for how long a component may call itself unhealthy, in seconds.
        """
        well_at = dict.fromkeys(_HEALTH_OF.values(), self._clock.monotonic())
        next_look = next_clean = self._clock.monotonic()
        while not stop.wait(1.0):
            self.watch()
            now = self._clock.monotonic()
            if now >= next_look:
                next_look = now + 20.0
                for name in COMPONENTS:
                    if name not in self._retry_at and now - well_at[name] > sick_after_s:
                        log.warning("%s has hung for %.0f s and is ended", name, sick_after_s)
                        sessions.send([self._processes[name].pid], signal.SIGKILL)
                        well_at[name] = now
                health = self.health()
                for part, name in _HEALTH_OF.items():
                    if health.get(part) == "healthy":
                        well_at[name] = now
            if now >= next_clean:
                next_clean = now + 3600.0
                remove_old_logs(self._home, self._clock)
                self._shorten_logs()

    def _shorten_logs(self) -> None:
        """Keep a component's output bounded: the components append, so it may be cut."""
        for name in COMPONENTS:
            path = self.log_of(name)
            if path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                os.truncate(path, 0)

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop everything that was started, and everything that it started.

        Args:
            hurry: True once the person has asked twice; then nothing is waited for.

        Raises:
            RackpulseError: something cannot be ended; the text names it.
        """
        running = [p.pid for p in self._processes.values() if p.poll() is None]
        sessions.send(running, signal.SIGTERM)
        deadline = self._clock.monotonic() + self._grace_s
        while self._clock.monotonic() < deadline and not hurry():
            for process in self._processes.values():
                process.poll()
            if not sessions.members(self._sessions):
                break
            self._clock.wait(0.1)
        sessions.end(self._sessions, self._clock, 0.0 if hurry() else 2.0)
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        left = sessions.members(self._sessions)
        if left:
            raise RackpulseError(f"Airflow processes could not be ended: {left}")
        self._home.run_file.unlink(missing_ok=True)


def remove_old_logs(home: AirflowHome, clock: Clock, keep_days: int = 7) -> int:
    """Remove the logs of tasks that ran longer ago; returns how many folders went."""
    oldest = clock.now().timestamp() - keep_days * 86400
    removed = 0
    for run in home.logs.glob("dag_id=*/run_id=*"):
        if run.stat().st_mtime < oldest:
            shutil.rmtree(run, ignore_errors=True)
            removed += 1
    return removed
