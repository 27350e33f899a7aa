"""Small halls, and the difference that a fault makes: the same hall with and without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.hall.engine import Hall
from pipeline.hall.faults import Fault
from pipeline.hall.fleet import Fleet, build_fleet
from pipeline.hall.observe import Columns, Observation, Observer

# 2026-03-02T08:00:00Z
START = 1_772_438_400.0
STEP = 10.0


@dataclass
class Watched:
    """A hall and what was seen of it, step by step."""

    hall: Hall
    seen: list[Observation]

    def mean(self, part: str, name: str, last: int = 12) -> np.ndarray:
        """Mean of a gauge over the last steps."""
        return np.mean([getattr(o, part)[name] for o in self.seen[-last:]], axis=0)

    def rate(self, part: str, name: str, last: int = 12) -> np.ndarray:
        """Rise of a counter per second over the last steps."""
        a, b = self.seen[-last - 1], self.seen[-1]
        return (getattr(b, part)[name] - getattr(a, part)[name]) / (b.at - a.at)

    def lost(self, last: int = 12) -> np.ndarray:
        """Lost-bandwidth share of each fabric port: ticks of 8 bytes against 100 GB/s."""
        return self.rate("port", "xmit_wait_ticks", last) * 8 / 100e9

    def used(self, last: int = 12) -> np.ndarray:
        """Utilisation of each fabric port."""
        return self.rate("port", "xmit_data_bytes", last) / 100e9


def watch(fleet: Fleet, faults: list[Fault], minutes: float, links: bool = False) -> Watched:
    """Run a hall from START and observe every step."""
    hall = Hall(fleet, START, faults)
    observer = Observer(hall)
    seen = []
    for _ in range(round(minutes * 60 / STEP)):
        hall.advance(STEP)
        seen.append(observer.observe(links=links))
    return Watched(hall, seen)


def with_and_without(
    fault_of: Callable[[Fleet], Fault], *, racks: int = 4, seed: int = 11, minutes: float = 14.0
) -> tuple[Watched, Watched, Fault]:
    """The same hall with one fault and without it."""
    fleet = build_fleet(racks, seed)
    fault = fault_of(fleet)
    return watch(fleet, [fault], minutes), watch(fleet, [], minutes), fault


def ports_of(fleet: Fleet, ids: list[str]) -> list[int]:
    """Numbers of fabric ports in an observation, by ``guid/port``."""
    n, links = fleet.gpus, fleet.fabric_links
    known = {f"{guid}/1": number for number, guid in enumerate(fleet.hca_guids)}
    for number in range(n):
        known[f"{fleet.leaf_guids[fleet.gpu_leaf[number]]}/{fleet.gpu_leaf_port[number]}"] = (
            n + number
        )
    for link in range(links):
        leaf = fleet.leaf_guids[fleet.up_leaf[link]]
        spine = fleet.spine_guids[fleet.up_spine[link]]
        known[f"{leaf}/{fleet.up_port[link]}"] = 2 * n + link
        known[f"{spine}/{fleet.spine_port[link]}"] = 2 * n + links + link
    return [known[name] for name in ids]


def counters_of(o: Observation) -> dict[str, Columns]:
    """Parts of an observation that hold counters."""
    return {"gpu": o.gpu, "port": o.port, "rack": o.rack, "pump": o.pump}


def ratio(sick: Watched, well: Watched, name: str) -> np.ndarray:
    """A gauge of the GPUs against the undisturbed hall; 1 where both are 0."""
    a, b = sick.mean("gpu", name), well.mean("gpu", name)
    return np.where(b > 0, a / np.where(b > 0, b, 1.0), 1.0)
