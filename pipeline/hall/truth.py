"""Labels: what a labelled set says is a fault, and what is harmless."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from pipeline.hall.engine import Hall
from pipeline.hall.faults import Fault
from pipeline.hall.rows import at_time


def fault_line(fault: Fault, until: float | None = None) -> dict[str, Any]:
    """One fault or harmless event as an object for ``truth.jsonl``.

    Args:
        until: end of the recording, for faults that outlast it.
    """
    end = fault.end if until is None else min(fault.end, until)
    line: dict[str, Any] = (
        {"benign": True, "kind": fault.cause} if fault.benign
        else {"detector": fault.detector, "cause": fault.cause}
    )  # fmt: skip
    line |= {
        "entity_kind": fault.entity_kind,
        "entity": fault.entity,
        "start": iso(fault.start),
        "visible_from": iso(fault.visible_from),
        "end": iso(end) if math.isfinite(end) else None,
        "severity": fault.severity,
        "ramp_s": fault.ramp_s,
    }
    if fault.also:
        line["also"] = list(fault.also)
    return line


def iso(at: float) -> str:
    """Seconds since 1970 as ISO 8601, UTC."""
    return at_time(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TruthKeeper:
    """Collects what happens by itself: jobs that start and stop, checkpoints, births."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._jobs = [job.id for job in hall.schedule.jobs]
        self._lines: list[dict[str, Any]] = [
            {
                "benign": True, "kind": "born_slow", "entity_kind": "gpu",
                "entity": hall.fleet.gpu_uuids[number], "start": iso(hall.at), "end": None,
            }
            for number in hall.births.slow
        ]  # fmt: skip
        self._checkpointing = [False] * len(self._jobs)
        self._ended = [False] * len(self._jobs)

    def look(self) -> None:
        """Note what began since the last look."""
        hall = self._hall
        _, _, checkpointing, _ = hall.schedule.phases(hall.at - 10.0, hall.at)
        for number, job in enumerate(hall.schedule.jobs):
            if job.id != self._jobs[number]:
                self._note("job_start", job.id, job.start, job.start + job.load_s)
                self._jobs[number] = job.id
                self._ended[number] = False
            if math.isfinite(job.end) and hall.at >= job.end and not self._ended[number]:
                self._note("job_stop", job.id, job.end, job.end + 60.0)
                self._ended[number] = True
            now = bool(checkpointing[number] > 0.0)
            if now and not self._checkpointing[number]:
                self._note("checkpoint", job.id, hall.at - 10.0, hall.at + job.checkpoint_s)
            self._checkpointing[number] = now

    def _note(self, kind: str, job: str, start: float, end: float) -> None:
        self._lines.append(
            {"benign": True, "kind": kind, "entity_kind": "job", "entity": job,
             "start": iso(start), "end": iso(end)}
        )  # fmt: skip

    def lines(self, faults: Iterable[Fault], until: float) -> list[str]:
        """All lines, faults first, in order of their start."""
        told = [fault_line(fault, until) for fault in faults if fault.start < until]
        told.sort(key=lambda line: (bool(line.get("benign")), line["start"]))
        return [json.dumps(line) for line in [*told, *self._lines]]
