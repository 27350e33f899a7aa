"""``up.json``: what the running ``rackpulse up`` says of itself, for other terminals."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import RackpulseError


def _path(state_dir: Path) -> Path:
    return state_dir / "up.json"


def read_run(state_dir: Path) -> dict[str, Any]:
    """What the newest run wrote; empty when there is none or it is unreadable."""
    try:
        found = json.loads(_path(state_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ports_of(run: dict[str, Any]) -> dict[str, int]:
    """The ports of a run; what is no port number is left out."""
    ports = run.get("ports")
    if not isinstance(ports, dict):
        return {}
    return {
        name: port
        for name, port in ports.items()
        if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536
    }


def write_run(state_dir: Path, run: dict[str, Any]) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    draft = _path(state_dir).with_suffix(".tmp")
    draft.write_text(json.dumps(run, indent=1, default=str), encoding="utf-8")
    draft.replace(_path(state_dir))


def is_running(run: dict[str, Any]) -> bool:
    """Whether the run's supervisor still lives."""
    pid = run.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the state folder: one ``rackpulse up`` at a time.

    Raises:
        RackpulseError: another one holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            run = read_run(state_dir)
            raise RackpulseError(
                f"rackpulse up already runs on {state_dir} (process {run.get('pid', '?')}): "
                "stop it with Ctrl-C there, or use another folder with RACKPULSE_STATE_DIR"
            ) from exc
        yield
