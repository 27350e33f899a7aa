"""Outlet (b) as a load generator: a fleet at a sample rate, straight to Kafka."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.clock import Clock
from pipeline.hall.engine import Hall
from pipeline.hall.fleet import Fleet
from pipeline.hall.history import OutletMaker
from pipeline.hall.live import aligned
from pipeline.hall.messages import MessageMaker
from pipeline.hall.observe import Observer
from pipeline.hall.rows import RowMaker
from pipeline.streams import Contracts

NVLINKS_EVERY_S = 60.0


@dataclass(frozen=True)
class LoadReport:
    """What a run sent, and what it cost.

    Attributes:
        simulated_s: time in the hall.
        wall_s, cpu_s: time on the clock and of this process.
        acknowledged_s: time on the clock until Kafka had acknowledged all.
    """

    simulated_s: float
    wall_s: float
    cpu_s: float
    acknowledged_s: float
    rows: int

    @property
    def times_real_time(self) -> float:
        """Hall time per CPU second of one core."""
        return self.simulated_s / max(self.cpu_s, 1e-9)


def generate(
    fleet: Fleet,
    contracts: Contracts,
    clock: Clock,
    make_outlet: OutletMaker,
    *,
    seconds: float,
    hz: float = 1.0,
    window_s: float = 10.0,
    paced: bool = False,
    progress: Callable[[float], None] | None = None,
) -> LoadReport:
    """Send a fleet's samples.

    Args:
        hz: samples per second of every entity but the NVLinks, which come once a minute.
        window_s: samples that travel together.
        paced: as fast as time passes, instead of as fast as it goes.

    Raises:
        RackpulseError: Kafka does not take the rows.
    """
    begin = aligned(clock.now().timestamp())
    hall = Hall(fleet, begin)
    observer, rows = Observer(hall), RowMaker(fleet, contracts)
    messages = MessageMaker(rows)
    outlet = make_outlet(f"hall-load.{secrets.token_hex(4)}", {})
    dt = 1.0 / hz
    per_window = max(1, round(window_s * hz))
    windows = max(1, round(seconds / (per_window * dt)))
    next_links = begin
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        for window in range(windows):
            seen = []
            for sample in range(per_window):
                hall.advance(dt)
                links = sample == per_window - 1 and hall.at >= next_links
                seen.append(observer.observe(links=links))
            if seen[-1].link:
                next_links += NVLINKS_EVERY_S
                outlet.send(messages.bodies(rows.nvlink_parts(seen[-1:])))
            outlet.send(messages.bodies(rows.parts(seen, links=False)))
            if progress is not None:
                progress((window + 1) / windows)
            if paced:
                clock.wait(hall.at - begin - (time.perf_counter() - wall))
        sent = time.perf_counter() - wall
        outlet.flush()
    finally:
        outlet.close()
    return LoadReport(
        windows * per_window * dt,
        sent,
        time.process_time() - cpu,
        time.perf_counter() - wall,
        outlet.rows,
    )
