"""Kernel log lines of the compute trays: what the driver says when a fault strikes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import noise
from pipeline.hall.faults import Fault
from pipeline.hall.fleet import Fleet
from pipeline.hall.rows import at_time

_KERNEL = 109
KEPT_S = 6 * 3600.0  # a log page holds so much


@dataclass(frozen=True)
class Line:
    """One line of a tray's log, at a time in seconds since 1970."""

    at: float
    tray: int
    text: str


def lines_of(fleet: Fleet, faults: Iterable[Fault], since: float, until: float) -> list[Line]:
    """Lines logged after ``since`` and up to ``until``; they follow from the faults alone."""
    found: list[Line] = []
    for fault in faults:
        if fault.start > until or fault.end < since or fault.entity_kind != "gpu":
            continue
        found += [line for line in _of_fault(fleet, fault, until) if since < line.at <= until]
    return sorted(found, key=lambda line: (line.at, line.tray, line.text))


def page(fleet: Fleet, faults: Iterable[Fault], tray: int, until: float) -> bytes:
    """The log of one tray up to a time, as journalctl prints it in ISO form."""
    lines = lines_of(fleet, faults, until - KEPT_S, until)
    return "".join(
        f"{stamp(line.at)} {line.text}\n" for line in lines if line.tray == tray
    ).encode()


def stamp(at: float) -> str:
    """A time as journalctl prints it."""
    return at_time(at).isoformat(timespec="microseconds")


def _of_fault(fleet: Fleet, fault: Fault, until: float) -> list[Line]:
    gpu = fault.index
    tray = int(fleet.gpu_tray[gpu])
    full = fleet.pci_bus_ids[int(fleet.gpu_slot[gpu])]
    short = full[4:].rsplit(".", 1)[0]  # 0008:06:00
    host = fleet.hosts[tray]

    def line(at: float, text: str) -> Line:
        return Line(at, tray, f"{host} kernel: NVRM: {text}")

    name = line(fault.start + 0.01, f"GPU at PCI:{short}: {fleet.gpu_uuids[gpu]}")
    if fault.cause == "gpu_lost":
        lost = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        return [name, line(fault.start + 0.02, f"Xid (PCI:{short}): 79, {lost}")]
    if fault.cause == "hbm_error_storm":
        remap = "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping"
        return [name, line(fault.start + 30.0, f"Xid (PCI:{short}): 63, {remap}")]
    if fault.cause == "nvlink_flapping":
        last = min(until, fault.end)
        rng = noise.generator(fleet.seed, _KERNEL, gpu, int(fault.start))
        found = [name]
        at = fault.start + 5.0
        link = gpu % c.NVLINKS
        while at < last:
            text = f"NVLINK: Link {link} recovery, RLW rx short error"
            found.append(line(at, f"Xid (PCI:{short}): 145, pid='<unknown>', {text}"))
            at += float(np.clip(rng.exponential(240.0), 30.0, 1200.0))
        return found
    return []
