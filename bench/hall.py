"""``python -m bench.hall``: stepping, recording, load for Kafka, serving pages.

CPU time of this process is what counts, so that a busy machine does not decide; the time on the
clock and the machine's load stand beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from bench import machine
from pipeline.clock import SystemClock
from pipeline.hall.engine import Hall
from pipeline.hall.fleet import build_fleet
from pipeline.hall.load import generate
from pipeline.hall.observe import Observer
from pipeline.hall.pages.dcgm import DcgmPages
from pipeline.hall.pages.infiniband import InfinibandPages
from pipeline.hall.pages.nmxt import NmxtPages
from pipeline.hall.record import record
from pipeline.hall.scenario import HallPart, Scenario, TimePart
from pipeline.hall.view import View
from pipeline.streams import load_contracts

RACKS = 64
START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
TARGET_RECORD = 300.0  # times real time, whole fleet, one-minute samples
TARGET_LOAD = 2.0  # times real time on one core, whole fleet at 1 Hz
TARGET_DAY_BYTES = 1e9
TARGET_SERVE_CORES = 0.3  # eight racks every ten seconds


class _Nowhere:
    """An outlet that compresses as the producer does, and forgets."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers
        self.rows = 0
        self._codec = pa.Codec("zstd", compression_level=3)

    def send(self, bodies: Iterable[tuple[str, str, int, bytes]]) -> None:
        for _stream, _key, rows, body in bodies:
            self._codec.compress(body)
            self.rows += rows

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _step(racks: int) -> dict[str, object]:
    hall = Hall(build_fleet(racks, 1), START.timestamp())
    observer = Observer(hall)
    hall.advance(10.0)
    begun = time.process_time()
    for _ in range(50):
        hall.advance(10.0)
        observer.observe(links=False)
    took = (time.process_time() - begun) / 50
    return {"name": f"one step and its readings, {racks} racks", "cpu_ms": round(took * 1e3, 2)}


def _record(racks: int, hours: float) -> dict[str, object]:
    scenario = Scenario(
        hall=HallPart(racks=racks, seed=1), time=TimePart(start=START, hours=hours, nvlink_s=1800)
    )
    with tempfile.TemporaryDirectory() as folder:
        begun, clock = time.process_time(), time.perf_counter()
        record(scenario, Path(folder), load_contracts())
        took, wall = time.process_time() - begun, time.perf_counter() - clock
        size = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
    return {
        "name": f"record, {racks} racks, one-minute samples",
        "cpu_s": round(took, 2),
        "times_real_time": round(hours * 3600 / took),
        "wall_s": round(wall, 2),
        "times_real_time_on_the_clock": round(hours * 3600 / wall),
        "target_times_real_time": TARGET_RECORD,
        "bytes_per_day": round(size * 24 / hours),
        "target_bytes_per_day": TARGET_DAY_BYTES,
    }


def _load(racks: int, seconds: float) -> dict[str, object]:
    report = generate(
        build_fleet(racks, 1), load_contracts(), SystemClock(),
        lambda _collector, numbers: _Nowhere(numbers), seconds=seconds,
    )  # fmt: skip
    return {
        "name": f"load for Kafka, {racks} racks at 1 Hz, compressed",
        "cpu_s": round(report.cpu_s, 2),
        "wall_s": round(report.wall_s, 2),
        "rows": report.rows,
        "times_real_time": round(report.times_real_time, 1),
        "target_times_real_time": TARGET_LOAD,
    }


def _serve(racks: int) -> dict[str, object]:
    fleet = build_fleet(racks, 1)
    hall = Hall(fleet, START.timestamp())
    observer = Observer(hall)
    dcgm, nmxt, fabric = DcgmPages(fleet), NmxtPages(fleet), InfinibandPages(fleet)
    before = observer.observe()
    rounds = 4
    for number in range(rounds):
        if number == 1:
            begun = time.process_time()  # the first round makes the labels
        hall.advance(10.0)
        after = observer.observe()
        view = View.at(before, after, after.at - 5.0)
        size = sum(len(dcgm.render(view, tray)) for tray in range(fleet.trays))
        size += sum(len(nmxt.render(view, tray)) for tray in range(9 * fleet.racks))
        size += sum(len(fabric.render(view, shard)) for shard in range(5))
        before = after
    took = (time.process_time() - begun) / (rounds - 1)
    return {
        "name": f"pages of {racks} racks, every ten seconds",
        "cpu_ms": round(took * 1e3),
        "mb": round(size / 1e6, 1),
        "cores": round(took / 10.0, 3),
        "target_cores": TARGET_SERVE_CORES,
    }


def run(racks: int = RACKS, hours: float = 1.0, seconds: float = 60.0) -> list[dict[str, object]]:
    """Measure all; a target stands beside what is held to one."""
    return [_step(racks), _record(racks, hours), _load(racks, seconds), _serve(8)]


def main() -> None:
    """Print a line of Markdown per measurement."""
    print(f"# The hall, load of the machine {machine.load():.1f}\n")
    for result in run():
        numbers = (f"{key.replace('_', ' ')} {value}" for key, value in result.items())
        print("- " + ", ".join(numbers).removeprefix("name "))


if __name__ == "__main__":
    main()
