"""Processes found by the session that they were started in.

Airflow gives every task a process group of its own and rewrites its processes' titles and
with them their environment, so neither group nor environment tells what belongs to us. The
session does: whatever a component starts stays in the component's session.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.clock import Clock

_PROC = Path("/proc")


@dataclass(frozen=True)
class Session:
    """A session and when its leader started, since ids of processes are used again.

    Attributes:
        sid: id of the session, which is its leader's process id.
        boot_id: of the machine's run in which it was started.
        started_ticks: leader's start, in clock ticks since that boot.
    """

    sid: int
    boot_id: str
    started_ticks: int


def boot_id() -> str:
    """Changes with every boot of the machine; empty where the system does not tell."""
    with contextlib.suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, session and start (ticks) of a process; None when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in brackets, may hold anything: fields are counted from its end.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[3]), int(fields[19])


def of_process(pid: int) -> Session:
    """The session that this process leads."""
    found = _stat(pid)
    return Session(pid, boot_id(), found[2] if found else 0)


def members(sessions: Collection[Session]) -> list[int]:
    """Ids of the living processes of these sessions.

    A session's id is not given to a new process while a member of it lives, so a session of
    that id belongs to us unless it has a leader that started at another time.
    """
    ours = {session.sid: session for session in sessions if session.boot_id == boot_id()}
    for sid, session in list(ours.items()):
        leader = _stat(sid)
        if leader and leader[2] != session.started_ticks:
            del ours[sid]
    if not ours or not _PROC.is_dir():
        return []
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat and stat[0] not in "ZX" and stat[1] in ours:
                found.append(int(entry.name))
    return found


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Send a signal to each that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(sessions: Collection[Session], clock: Clock, grace_s: float) -> list[int]:
    """End every process of these sessions: asked first, killed after ``grace_s`` seconds.

    Returns:
        The ids of those that had to be killed.
    """
    send(members(sessions), signal.SIGTERM)
    deadline = clock.monotonic() + grace_s
    while members(sessions) and clock.monotonic() < deadline:
        clock.wait(0.1)
    killed: list[int] = []
    for _ in range(50):
        # Again, because one of them may have started another in the meantime.
        left = members(sessions)
        if not left:
            break
        killed.extend(pid for pid in left if pid not in killed)
        send(left, signal.SIGKILL)
        clock.wait(0.1)
    return killed
