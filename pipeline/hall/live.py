"""A hall that goes with the clock: steps ahead of it, resumes after a stop, takes faults."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.clock import Clock
from pipeline.errors import ConfigError
from pipeline.hall.draw import Drawer
from pipeline.hall.engine import Hall
from pipeline.hall.faults import Fault, make_fault
from pipeline.hall.fleet import Fleet
from pipeline.hall.observe import Observation, Observer
from pipeline.hall.snapshot import (
    fault_from_json,
    fault_to_json,
    read_snapshot,
    write_snapshot,
)
from pipeline.hall.view import View

log = logging.getLogger("rackpulse.hall")

STEP_S = 10.0
# A hall that was stopped for longer stood still meanwhile: its jobs and counters wait.
CATCH_UP_S = 6 * 3600.0
_COARSE_S = 60.0


class LiveHall:
    """One hall, its clock and its state file.

    Args:
        state_file: snapshot to resume from and to write.
        history_s: how long before now the hall begins, when there is nothing to resume.

    Raises:
        ConfigError: the state file is that of another hall.
    """

    def __init__(
        self, fleet: Fleet, clock: Clock, state_file: Path, *, history_s: float = 0.0
    ) -> None:
        self.fleet = fleet
        self._clock = clock
        self._file = state_file
        self.draws: dict[str, list[int]] = {}
        self.history: dict[str, Any] = {}
        now = aligned(clock.now().timestamp())
        saved = read_snapshot(state_file)
        self.resumed = saved is not None
        if saved is None:
            self.hall = Hall(fleet, now - history_s)
            self.history = {"begin": self.hall.at, "done": history_s <= 0.0}
        else:
            self.hall = self._restored(*saved)
        self.observer = Observer(self.hall, ufm=True)
        self._after = self.observer.observe()
        self._before = self._after

    def _restored(self, arrays: dict[str, Any], meta: Mapping[str, Any]) -> Hall:
        mine = {"racks": self.fleet.racks, "seed": self.fleet.seed, "cluster": self.fleet.cluster}
        theirs = {name: meta[name] for name in mine}
        if mine != theirs:
            raise ConfigError(
                f"{self._file} is the state of another hall ({_words(theirs)}); this one is "
                f"{_words(mine)}. Start that one again, or remove the state folder (make clean)"
            )
        hall = Hall(self.fleet, float(meta["epoch"]), [fault_from_json(f) for f in meta["faults"]])
        hall.restore(arrays)
        hall.settle_now()
        self.draws = {str(seed): list(numbers) for seed, numbers in meta["draws"].items()}
        self.history = dict(meta["history"])
        return hall

    def save(self) -> None:
        """Write the snapshot."""
        meta = {
            "racks": self.fleet.racks, "seed": self.fleet.seed, "cluster": self.fleet.cluster,
            "epoch": self.hall.epoch, "draws": self.draws, "history": self.history,
            "faults": [fault_to_json(fault) for fault in self.hall.faults],
        }  # fmt: skip
        write_snapshot(self._file, self.hall.save(), meta)

    # --- time ---
    def catch_up(self) -> None:
        """After a stop: let the time that passed pass in the hall, without rows."""
        now = aligned(self._clock.now().timestamp())
        gap = now - self.hall.at
        if gap > CATCH_UP_S:
            log.info("the hall stood still for %.1f h", gap / 3600)
            self._shift(gap)
        while self.hall.at + _COARSE_S <= now:
            self.hall.advance(_COARSE_S)
        while self.hall.at < now:
            self.hall.advance(STEP_S)
        self._before = self._after = self.observer.observe()

    def _shift(self, gap: float) -> None:
        """Move the hall's own time, so that nothing happened while it was switched off."""
        hall = self.hall
        hall.epoch += gap
        hall.at += gap
        hall.faults = [
            replace(fault, start=fault.start + gap, end=fault.end + gap) for fault in hall.faults
        ]
        hall.schedule.shift(gap)

    def step(self) -> None:
        """Stay ahead of the clock by up to one step; save after each."""
        now = self._clock.now().timestamp()
        moved = False
        while self.hall.at < now:
            self._before = self._after
            self.hall.advance(STEP_S)
            self._after = self.observer.observe()
            moved = True
        if moved:
            self.save()

    def view(self) -> View:
        """The hall now."""
        self.step()
        return View.at(self._before, self._after, self._clock.now().timestamp())

    def observation(self) -> Observation:
        """The newest readings."""
        return self._after

    # --- faults ---
    def draw(self, seed: int, *, delay_s: float = 20.0, spread_s: float = 30.0) -> list[Fault]:
        """Three faults, one per detector, from a seed; the same seed draws once only."""
        known = self.draws.get(str(seed))
        if known is None:
            drawer = Drawer(self.fleet, self.hall.births, self.hall.epoch, seed)
            start = aligned(self._clock.now().timestamp() + delay_s)
            found = drawer.three(start, spread_s=spread_s)
            first = len(self.hall.faults)
            self.hall.faults += found
            self.draws[str(seed)] = list(range(first, first + len(found)))
            self.save()
        return [self.hall.faults[number] for number in self.draws[str(seed)]]

    def add(
        self,
        cause: str,
        entity: str,
        *,
        severity: float | None = None,
        ramp_s: float | None = None,
        delay_s: float = 0.0,
        minutes: float | None = None,
    ) -> tuple[int, Fault]:
        """One named fault; its number and itself.

        Raises:
            ConfigError: unknown cause or entity.
        """
        start = self._clock.now().timestamp() + delay_s
        fault = make_fault(
            self.fleet, cause, entity, start, severity=severity, ramp_s=ramp_s,
            **({} if minutes is None else {"end": start + 60.0 * minutes}),
        )  # fmt: skip
        self.hall.faults.append(fault)
        self.save()
        return len(self.hall.faults) - 1, fault

    def end(self, number: int) -> Fault:
        """Let a fault end now.

        Raises:
            ConfigError: there is no fault of that number.
        """
        if not 0 <= number < len(self.hall.faults):
            raise ConfigError(f"There is no fault {number} in this hall")
        self.hall.faults[number] = self.hall.faults[number].ended(self._clock.now().timestamp())
        self.save()
        return self.hall.faults[number]

    def faults(self) -> Sequence[Fault]:
        """All faults that were ever told to this hall."""
        return self.hall.faults


def aligned(at: float) -> float:
    """The last whole step before a time."""
    return at - at % STEP_S


def _words(hall: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in hall.items())
