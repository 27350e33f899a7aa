"""Supervised processes: started, restarted, stopped, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.errors import RackpulseError
from pipeline.up.process import MARK, ServiceProcess, ServiceSpec, end_leftovers, marked_processes
from pipeline.up.supervisor import StoppedEarlyError, Supervisor, supervised

_SLEEPER = "import signal; signal.pause()"
_STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""


def _until(check: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "not reached in time"
        os.sched_yield()


def _spec(code: str, name: str = "svc", **more: object) -> ServiceSpec:
    fields: dict[str, object] = {"ready": lambda: None, "stop_grace_s": 5.0, **more}
    return ServiceSpec(name=name, argv=(sys.executable, "-c", code), **fields)  # type: ignore[arg-type]


def _env(run_id: str) -> dict[str, str]:
    return {**os.environ, MARK: run_id}


def _supervisor(tmp_path: Path, run_id: str, said: list[str]) -> Supervisor:
    return Supervisor(tmp_path, _env(run_id), SystemClock(), said.append, threading.Event())


def test_a_service_that_dies_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = _supervisor(tmp_path, "dies", said)
    spec = _spec("raise SystemExit('no database here')", ready=lambda: "waiting")
    with supervised(supervisor, lambda: False):
        service = supervisor.start(spec)
        with pytest.raises(RackpulseError, match="(?s)exit code 1.*no database here"):
            supervisor.wait_ready(service)


def test_a_service_that_is_never_ready_is_given_up_with_the_reason(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, "slow", [])
    with supervised(supervisor, lambda: False):
        service = supervisor.start(
            _spec(_SLEEPER, ready=lambda: "opening the door", start_timeout_s=0.5)
        )
        with pytest.raises(RackpulseError, match="opening the door"):
            supervisor.wait_ready(service)
    assert not marked_processes("slow")


def test_stopping_while_starting_ends_what_was_started(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path, "early", [])
    with supervised(supervisor, lambda: False):
        service = supervisor.start(_spec(_SLEEPER, ready=lambda: "waiting"))
        supervisor._stop.set()
        with pytest.raises(StoppedEarlyError):
            supervisor.wait_ready(service)
    assert not marked_processes("early")


def test_a_killed_service_is_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = _supervisor(tmp_path, "again", said)
    with supervised(supervisor, lambda: False):
        service = supervisor.start(_spec(_SLEEPER))
        supervisor.wait_ready(service)
        first = service.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)

        def restarted() -> bool:
            supervisor.watch()
            return service.state == "running" and service.pid != first

        _until(restarted)
        assert service.restarts == 1
        assert any("exit -9" in line for line in said)
    assert not marked_processes("again")


def test_one_that_ignores_the_stop_signal_is_killed_with_its_children(tmp_path: Path) -> None:
    child = f"subprocess.Popen([sys.executable, '-c', {_STUBBORN!r}])"
    parent = f"import subprocess, sys\n{child}\n{_STUBBORN}"
    supervisor = _supervisor(tmp_path, "stubborn", [])
    with supervised(supervisor, lambda: False):
        supervisor.start(_spec(parent, stop_grace_s=0.5))
        _until(lambda: len(marked_processes("stubborn")) == 2)
    assert not marked_processes("stubborn")


def test_leftovers_of_an_earlier_run_are_ended_and_others_are_not(tmp_path: Path) -> None:
    clock = SystemClock()
    ours = ServiceProcess(_spec(_SLEEPER), tmp_path / "ours.log", _env("gone"), clock)
    other = ServiceProcess(_spec(_SLEEPER), tmp_path / "other.log", _env("gone-not"), clock)
    ours.start()
    other.start()
    try:
        assert ours.pid is not None
        _until(lambda: ours.pid in marked_processes("gone"))
        # Reap beside it, as the parent of a real leftover (init) would.
        reaper = threading.Thread(target=ours.wait_or_kill, args=(20.0,))
        reaper.start()
        assert end_leftovers("gone", clock, grace_s=5) == [ours.pid]
        reaper.join()
        assert not marked_processes("gone")
        assert other.exit_code() is None
    finally:
        other.wait_or_kill(grace_s=0)


def test_what_a_console_service_says_is_for_the_person(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = _supervisor(tmp_path, "console", said)
    with supervised(supervisor, lambda: False):
        supervisor.start(_spec("print('ALERT rack-03', flush=True)\n" + _SLEEPER, on_console=True))
        _until(lambda: "ALERT rack-03" in said)
