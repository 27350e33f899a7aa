"""Faults drawn from a seed: entities that are at work, times that do not collide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.errors import RackpulseError
from pipeline.hall import constants as c
from pipeline.hall import noise
from pipeline.hall.births import Births
from pipeline.hall.effects import Effects
from pipeline.hall.fabric import Fabric
from pipeline.hall.faults import CAUSES, Fault, leaf_end, make_benign, make_fault
from pipeline.hall.fleet import Fleet, Floats, Ints
from pipeline.hall.jobs import Schedule

_DRAW = 108
ATTEMPTS = 24
DETECTORS = ("straggler_gpu", "hot_rack", "congested_link")
# A checkpoint unsettles heat for minutes, and nobody judges what has not settled: a fault that
# heat tells, and that is to be shown soon, starts where none is near.
TOLD_BY_HEAT = ("degrading_cold_plate", "blocked_quick_disconnect")
CALM_BEFORE_S, CALM_AFTER_S = 120.0, 420.0
CALM_ATTEMPTS = 6


class Drawer:
    """Draws faults for one hall.

    Args:
        epoch: time that the hall's schedule starts from, seconds since 1970.
        seed: of the draw; the hall's own seed is the fleet's.
    """

    def __init__(self, fleet: Fleet, births: Births, epoch: float, seed: int) -> None:
        self.fleet, self.births = fleet, births
        self.epoch = epoch
        self.rng = noise.generator(seed, _DRAW)

    def one(
        self,
        causes: Sequence[str],
        start: float,
        end: float = math.inf,
        *,
        taken: Sequence[Fault] = (),
        ramp_s: float | None = None,
        calm: bool = False,
    ) -> Fault:
        """One fault of one of ``causes``, at an entity that is busy all the time.

        Args:
            taken: faults that it must not share an entity, rack or loop with.
            calm: one that heat tells only where no checkpoint is near its start.

        Raises:
            RackpulseError: nothing is busy for so long.
        """
        for cause in self.rng.permutation(list(causes)):
            kind = CAUSES[str(cause)]
            until = end if math.isfinite(end) else start + 1800.0
            schedule = Schedule(self.fleet, self.epoch)
            schedule.move_to(start - 60.0)
            candidates = self._candidates(
                str(cause), kind.entity_kind, schedule, start, until,
                calm=calm and str(cause) in TOLD_BY_HEAT,
            )  # fmt: skip
            candidates = self._free(candidates, kind.entity_kind, taken, start, until)
            if not candidates.size:
                continue
            index = int(self.rng.choice(candidates))
            low, high = self._range(str(cause), kind.severity, schedule, index)
            return make_fault(
                self.fleet, str(cause), self._name(kind.entity_kind, index), start,
                severity=round(float(self.rng.uniform(low, high)), 3), end=end, ramp_s=ramp_s,
            )  # fmt: skip
        raise RackpulseError("No part of the hall is busy for as long as the fault is to last")

    def three(self, start: float, *, spread_s: float = 120.0) -> list[Fault]:
        """One fault per detector, starting within ``spread_s`` of ``start``."""
        found: list[Fault] = []
        for detector in DETECTORS:
            causes = [
                name for name, cause in CAUSES.items() if cause.detector == detector and cause.drawn
            ]
            at = start + round(float(self.rng.uniform(0.0, spread_s)), 0)
            for attempt in range(ATTEMPTS):
                try:
                    calm = attempt < CALM_ATTEMPTS
                    found.append(self.one(causes, at + 60.0 * attempt, taken=found, calm=calm))
                    break
                except RackpulseError:  # a job has just ended: wait for the next one
                    if attempt == ATTEMPTS - 1:
                        raise
        return found

    def many(
        self,
        causes: Sequence[str],
        count: int,
        start: float,
        end: float,
        minutes: tuple[float, float],
    ) -> list[Fault]:
        """``count`` faults spread evenly over a time, one after another, causes in turn."""
        order = [str(cause) for cause in self.rng.permutation(list(causes))]
        found: list[Fault] = []
        slot = (end - start) / max(count, 1)
        for number in range(count):
            length = 60.0 * float(self.rng.uniform(*minutes))
            length = min(length, 0.9 * slot)
            # A time at which something is busy for long enough; jobs come and go.
            for attempt in range(ATTEMPTS):
                at = start + number * slot + float(self.rng.uniform(0.0, max(slot - length, 1.0)))
                at = round(at)
                cause = order[(number + attempt // 2) % len(order)]
                try:
                    found.append(self.one([cause], at, at + round(length), taken=found))
                    break
                except RackpulseError:
                    if attempt == ATTEMPTS - 1:
                        raise
        return found

    def benign(self, count: int, start: float, end: float) -> list[Fault]:
        """Harmless events of many kinds, spread over a time."""
        f, rng = self.fleet, self.rng
        kinds = ["missing_scrapes", "frozen_page", "blank_readings", "driver_upgrade", "hot_day",
                 "setpoint_change", "stage_imbalance", "balanced_saturation", "duplicate_scrapes",
                 "clock_skew"]  # fmt: skip
        schedule = Schedule(f, self.epoch)
        train = [p for p in schedule.partitions if p.kind == "train" and p.wide]
        found = []
        for number in range(count):
            kind = kinds[number % len(kinds)]
            at = round(float(rng.uniform(start, end - 600.0)))
            if kind in ("stage_imbalance", "balanced_saturation"):
                if not train:
                    continue
                entity = f"partition-{train[int(rng.integers(len(train)))].number}"
                level, length, ramp = (0.06 if kind == "stage_imbalance" else 0.55), 3600, 60.0
            elif kind in ("hot_day", "setpoint_change"):
                entity, level, length, ramp = "", float(rng.uniform(1.5, 3.0)), 7200, 1200.0
            else:
                entity = f.hosts[int(rng.integers(f.trays))]
                level = {"missing_scrapes": 0.5, "blank_readings": 0.4, "clock_skew": 8.0}.get(
                    kind, 1.0
                )
                length, ramp = (600 if kind == "driver_upgrade" else 1800), 0.0
            found.append(
                make_benign(f, kind, entity, at, min(at + length, end), level=level, ramp_s=ramp)
            )
        return found

    # --- who can be taken ---
    def _name(self, kind: str, index: int) -> str:
        f = self.fleet
        if kind == "gpu":
            return f.gpu_uuids[index]
        if kind == "hca":
            return f"{f.hca_guids[index]}/1"
        if kind == "uplink":
            return leaf_end(f, index)
        return f.rack_ids[index] if kind == "rack" else f.cdu_ids[index]

    def _candidates(
        self, cause: str, kind: str, schedule: Schedule, start: float, end: float, *, calm: bool
    ) -> Ints:
        f = self.fleet
        busy = schedule.train & (schedule.start + schedule.load_s < start) & (schedule.end > end)
        members = busy[schedule.gpu_partition]
        if calm:
            _, _, saving, _ = schedule.phases(start - CALM_BEFORE_S, start + CALM_AFTER_S)
            members = members & (saving == 0.0)[schedule.gpu_partition]
        if kind == "gpu":
            members = members & (schedule.members[schedule.gpu_partition] >= 32)
            members[self.births.slow] = False
            return np.flatnonzero(members)
        if kind == "hca":
            return np.flatnonzero(members & (schedule.ib_share[schedule.gpu_partition] > 0.3))
        racks = members.reshape(f.racks, c.GPUS_PER_RACK).all(axis=1)
        if kind == "rack":
            return np.flatnonzero(racks)
        if kind == "cdu":
            total = np.bincount(f.rack_cdu, minlength=f.cdus)
            hot = np.bincount(f.rack_cdu, weights=racks, minlength=f.cdus)
            return np.flatnonzero((hot >= 0.7 * total) & ((total > 1) | (f.racks <= 3)))
        load = self._uplink_load(schedule, busy)
        wanted = {"downed_uplink": 0.36, "routing_imbalance": 0.36}.get(cause, 0.28)
        return np.flatnonzero(load > min(wanted, 0.9 * load.max(initial=0.0)))

    def _range(
        self, cause: str, severity: tuple[float, float], schedule: Schedule, index: int
    ) -> tuple[float, float]:
        """Severities that show: a lightly loaded link needs more."""
        low, high = severity
        if cause not in ("bad_cable", "downed_uplink", "routing_imbalance"):
            return low, high
        load = float(self._uplink_load(schedule, schedule.train)[index])
        if cause != "bad_cable":
            least = max(low, 1.3 / max(load, 0.05) - 1.0)
            return least, max(high, least + 0.5)
        # Lost share is load * s / sqrt(1 - s): find where it passes 18 %.
        shares = np.linspace(low, 0.68, 34)
        enough = shares[load * shares / np.sqrt(1.0 - shares) >= 0.18]
        return (float(enough[0]), max(high, float(enough[0]))) if enough.size else (0.66, 0.68)

    def _uplink_load(
        self, schedule: Schedule, busy: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    ) -> Floats:
        fabric = Fabric(self.fleet, schedule, self.births)
        demand = (schedule.ib_share * busy)[schedule.gpu_partition]
        effects = Effects(self.fleet, len(schedule.partitions))
        f = self.fleet
        flows = fabric.carry(
            effects, demand, np.zeros(f.fabric_links), np.zeros(2 * f.gpus + 2 * f.fabric_links)
        )
        return flows.up

    def _free(
        self, candidates: Ints, kind: str, taken: Sequence[Fault], start: float, end: float
    ) -> Ints:
        """Leave out what another fault touches at the same time."""
        f = self.fleet
        keep = np.ones(candidates.size, dtype=bool)
        for other in taken:
            if other.start > end + 900.0 or other.end + 900.0 < start:
                continue
            if other.entity_kind == "gpu":
                rack = f.gpu_rack[other.index]
            elif other.entity_kind == "rack":
                rack = other.index
            else:
                rack = -1
            if kind in ("gpu", "hca"):
                racks = f.gpu_rack[candidates]
                keep &= racks != rack
                if other.entity_kind == "cdu":
                    keep &= f.rack_cdu[racks] != other.index
            elif kind == "rack":
                keep &= candidates != rack
                if other.entity_kind == "cdu":
                    keep &= f.rack_cdu[candidates] != other.index
            elif kind == "cdu":
                if other.entity_kind == "cdu":
                    keep &= candidates != other.index
                elif rack >= 0:
                    keep &= candidates != f.rack_cdu[rack]
            elif kind == "uplink" and other.cause in ("bad_cable", "downed_uplink"):
                keep &= f.up_leaf[candidates] != f.up_leaf[other.index]
        return candidates[keep]


def shifted(faults: Sequence[Fault], by_s: float) -> list[Fault]:
    """The same faults, later."""
    return [replace(fault, start=fault.start + by_s, end=fault.end + by_s) for fault in faults]
