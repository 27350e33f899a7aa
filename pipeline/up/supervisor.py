"""Start services in order, restart what falls, stop all in the opposite order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.up.process import ServiceProcess, ServiceSpec, marked_processes

Say = Callable[[str], None]


class StoppedEarlyError(Exception):
    """The person asked to stop while things were still starting."""


class Supervisor:
    """Owner of the services of one run.

    Args:
        logs: folder of the services' logs.
        env: environment of every service.
        say: prints a line for the person.
        stop: set when everything shall end.
    """

    def __init__(
        self,
        logs: Path,
        env: Mapping[str, str],
        clock: Clock,
        say: Say,
        stop: threading.Event,
    ) -> None:
        self._logs = logs
        self._env = env
        self._clock = clock
        self._say = say
        self._stop = stop
        self.services: list[ServiceProcess] = []

    def start(self, spec: ServiceSpec) -> ServiceProcess:
        """Start a service without waiting until it is ready."""
        service = ServiceProcess(spec, self._logs / f"{spec.name}.log", self._env, self._clock)
        service.start()
        self.services.append(service)
        if spec.on_console:
            threading.Thread(
                target=self._relay, args=(service,), name=f"console-{spec.name}", daemon=True
            ).start()
        return service

    def _relay(self, service: ServiceProcess) -> None:
        """Print what the service says; a restarted one has a new pipe."""
        pipe = service.console
        while pipe is not None:
            for line in pipe:
                self._say(line.rstrip("\n"))
            while service.console is pipe and not self._stop.is_set():
                self._stop.wait(0.5)
            if self._stop.is_set():
                return
            pipe = service.console

    def wait_ready(self, service: ServiceProcess, progress: Say | None = None) -> None:
        """Wait until the service does its work.

        Args:
            progress: told what is waited for, each time that it changes.

        Raises:
            RackpulseError: it ended or took too long; the text holds the end of its log.
            StoppedEarlyError: the person asked to stop.
        """
        spec = service.spec
        deadline = self._clock.monotonic() + spec.start_timeout_s
        last: str | None = None
        while True:
            if self._stop.is_set():
                raise StoppedEarlyError
            code = service.exit_code()
            if code is not None:
                raise RackpulseError(
                    f"{spec.name} ended with exit code {code} while starting. "
                    f"Its log {service.log} says:\n{service.last_lines()}"
                )
            waiting = spec.ready()
            if waiting is None:
                service.state = "running"
                return
            if waiting != last and progress:
                progress(waiting)
            last = waiting
            if self._clock.monotonic() > deadline:
                raise RackpulseError(
                    f"{spec.name} was not ready after {spec.start_timeout_s:.0f} s ({waiting}). "
                    f"Its log {service.log} says:\n{service.last_lines()}"
                )
            self._stop.wait(0.3)

    def watch(self) -> None:
        """Look at every service once; restart what has ended."""
        for service in self.services:
            before = service.state
            restarted = service.watch()
            if before in ("running", "starting") and service.state.startswith("restarting"):
                self._say(
                    f"{service.spec.name}: {service.state}; "
                    f"the end of {service.log}:\n{service.last_lines(3)}"
                )
            if restarted:
                self._say(f"{service.spec.name}: started again")

    def stop_all(self, hurry: Callable[[], bool]) -> None:
        """Stop everything, newest first, and make sure that nothing is left.

        Args:
            hurry: True once the person has asked twice; then nothing is waited for.
        """
        for service in reversed(self.services):
            self._say(f"stopping {service.spec.name}")
            service.ask_to_stop()
            deadline = self._clock.monotonic() + service.spec.stop_grace_s
            while (
                service.exit_code() is None and not hurry() and self._clock.monotonic() < deadline
            ):
                self._clock.wait(0.1)
            service.wait_or_kill(grace_s=0)


@contextmanager
def supervised(supervisor: Supervisor, hurry: Callable[[], bool]) -> Iterator[Supervisor]:
    """Stop everything at the end of the block, however it ends."""
    try:
        yield supervisor
    finally:
        supervisor.stop_all(hurry)


def nothing_left(run_id: str) -> bool:
    """Whether no process of this run lives any more."""
    return not marked_processes(run_id)
