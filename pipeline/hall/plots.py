"""Signature plots: what each fault looks like beside its peers, from the hall itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.hall.births import draw_births
from pipeline.hall.draw import Drawer
from pipeline.hall.engine import Hall
from pipeline.hall.faults import CAUSES, Fault
from pipeline.hall.fleet import Bools, Fleet, Floats, Ints, build_fleet
from pipeline.hall.observe import Observation, Observer
from pipeline.hall.svg import Line, Panel, plot

RACKS, SEED = 8, 1
_START = 1_772_438_400.0  # 2026-03-02T08:00:00Z
_RED, _BLUE = "#c0392b", "#2c5f93"
_BEFORE_S, _FAULT_S, _AFTER_S = 300.0, 900.0, 300.0

# Panels of each cause: (part, column, title); counters are shown as rates.
_GPU = {
    "clock": ("gpu", "sm_clock_mhz", "SM clock, MHz"),
    "temp": ("gpu", "gpu_temp_c", "GPU temperature, °C"),
    "hbm": ("gpu", "memory_temp_c", "HBM temperature, °C"),
    "tensor": ("gpu", "tensor_active_ratio", "tensor pipe active"),
    "engine": ("gpu", "gr_engine_active_ratio", "graphics engine active"),
    "power": ("gpu", "power_w", "power, W"),
    "violation": ("gpu", "thermal_violation_ns", "thermal violation, share of time"),
    "brake": ("gpu", "hw_power_brake_ns", "power brake, share of time"),
    "recoveries": ("gpu", "nvlink_recovery_events", "NVLink recoveries per minute"),
    "ecc": ("gpu", "ecc_sbe_volatile", "correctable memory errors per second"),
    "pcie": ("gpu", "pcie_link_width", "PCIe lanes"),
}
_RACK = {
    "supply": ("connector", "supply_temp_c", "rack supply, °C"),
    "flow": ("connector", "flow_lpm", "rack flow, L/min"),
    "valve": ("connector", "valve_position_percent", "rack valve, % open"),
    "rise": ("connector", "delta_temp_k", "coolant's rise, K"),
    "dp": ("connector", "delta_pressure_kpa", "rack differential pressure, kPa"),
    "heat": ("connector", "heat_removed_kw", "heat removed as metered, kW"),
}
_CDU = {
    "level": ("cdu", "level_percent", "level of the loop's reservoir, %"),
    "filter": ("cdu", "filter_pressure_kpa", "pressure lost over the filter, kPa"),
    "speed": ("pump", "pump_speed_percent", "pump speed, %"),
}
_PORT = {
    "lost": ("port", "xmit_wait_ticks", "lost bandwidth, share of line rate"),
    "used": ("port", "xmit_data_bytes", "utilisation, share of line rate"),
    "symbols": ("port", "symbol_errors", "symbol errors received per second"),
}
SHOWN: dict[str, tuple[str, ...]] = {
    "capped_clocks": ("clock", "tensor", "temp"),
    "degrading_cold_plate": ("temp", "clock", "violation"),
    "host_interference": ("engine", "tensor", "power"),
    "power_brake": ("clock", "brake", "tensor"),
    "hbm_error_storm": ("ecc", "tensor", "engine"),
    "pcie_downtrain": ("pcie", "engine", "tensor"),
    "nvlink_flapping": ("recoveries", "tensor", "engine"),
    "gpu_lost": ("tensor", "power", "temp"),
    "blocked_quick_disconnect": ("flow", "valve", "median"),
    "supply_drift": ("supply", "median", "flow"),
    "tired_pump": ("flow", "speed", "median"),
    "valve_stuck": ("valve", "flow", "median"),
    "setpoint_drift": ("supply", "median", "flow"),
    "small_leak": ("level", "wet", "median"),
    "fouled_filter": ("filter", "speed", "dp"),
    "lying_flow_meter": ("flow", "heat", "median"),
    "bad_cable": ("lost", "used", "symbols"),
    "downed_uplink": ("lost", "used", "symbols"),
    "slow_receiver": ("lost", "used", "symbols"),
    "routing_imbalance": ("lost", "used", "symbols"),
    "incast": ("lost", "used", "symbols"),
}
# A rate's factor: to the unit of its title.
_FACTOR = {
    "thermal_violation_ns": 1e-9, "hw_power_brake_ns": 1e-9, "nvlink_recovery_events": 60.0,
    "ecc_sbe_volatile": 1.0, "xmit_wait_ticks": 8 / 100e9, "xmit_data_bytes": 1 / 100e9,
    "symbol_errors": 1.0,
}  # fmt: skip


@dataclass
class _Run:
    fault: Fault
    fleet: Fleet
    hall: Hall
    seen: list[Observation]

    def series(self, part: str, column: str) -> Floats:
        """Values by time and entity; rates for counters."""
        values = np.array([getattr(o, part)[column] for o in self.seen])
        if part == "gpu":
            values = np.where(np.array([o.gpu_seen for o in self.seen]), values, np.nan)
        if column not in _FACTOR:
            return values[1:]
        dt = np.diff([o.at for o in self.seen])[:, None]
        rates: Floats = np.diff(values, axis=0) / dt * _FACTOR[column]
        return rates


def signature(cause: str, seed: int = SEED) -> str:
    """The SVG of one cause: its entity against its peers, five minutes before and after."""
    fleet = build_fleet(RACKS, seed)
    fault = Drawer(fleet, draw_births(fleet), _START, seed).one(
        [cause], _START + _BEFORE_S, _START + _BEFORE_S + _FAULT_S
    )
    run = _watch(fleet, fault)
    times = [(o.at - fault.start) / 60.0 for o in run.seen][1:]
    marks = (0.0, (fault.visible_from - fault.start) / 60.0, (fault.end - fault.start) / 60.0)
    panels = [_panel_of(run, name, marks) for name in SHOWN[cause]]
    title = f"{cause} ({fault.detector}), severity {fault.severity:g}"
    below = "minutes since the fault began; dashed: it begins, can be seen, ends"
    return plot(title, times, panels, below)


def _watch(fleet: Fleet, fault: Fault) -> _Run:
    hall = Hall(fleet, _START, [fault])
    observer = Observer(hall)
    seen = [observer.observe(links=False)]
    while hall.at < _START + _BEFORE_S + _FAULT_S + _AFTER_S:
        hall.advance(10.0)
        seen.append(observer.observe(links=False))
    return _Run(fault, fleet, hall, seen)


def _panel_of(run: _Run, name: str, marks: tuple[float, ...]) -> Panel:
    if name == "median":
        by_rack = run.series("gpu", "gpu_temp_c").reshape(-1, run.fleet.racks, 72)
        values = np.nanmedian(by_rack, axis=2)
        return _panel(values, *_racks(run), "median GPU temperature of the rack, °C", marks)
    if name == "wet":
        volts = run.series("leak", "voltage_v").reshape(-1, run.fleet.racks, 36).min(axis=2)
        return _panel(volts, *_racks(run), "lowest voltage of the rack's leak detectors", marks)
    part, column, title = {**_GPU, **_RACK, **_CDU, **_PORT}[name]
    values = run.series(part, column)
    if part == "gpu":
        job = run.hall.schedule.gpu_partition
        peers = job == job[run.fault.index]
        peers[run.fault.index] = False
        return _panel(values, np.array([run.fault.index]), peers, title, marks, "its job")
    if part in ("cdu", "pump"):
        return _panel(values, *_loops(run, part), title, marks, "other loops")
    if part == "connector":
        return _panel(values, *_racks(run), title, marks)
    return _panel(values, *_ports(run), title, marks, "its peers")


def _racks(run: _Run) -> tuple[Ints, Bools]:
    f, fault = run.fleet, run.fault
    mine = (
        np.flatnonzero(f.rack_cdu == fault.index)
        if fault.entity_kind == "cdu" else np.array([fault.index])
    )  # fmt: skip
    peers = np.ones(f.racks, dtype=bool)
    peers[mine] = False
    peers[-1] = False  # the last rack is shared by small jobs: another load
    return mine, peers


def _loops(run: _Run, part: str) -> tuple[Ints, Bools]:
    """The fault's CDU or its two pumps, and the others'."""
    f, fault = run.fleet, run.fault
    each = 2 if part == "pump" else 1
    cdu = fault.index if fault.entity_kind == "cdu" else int(f.rack_cdu[fault.index])
    mine = each * cdu + np.arange(each)
    peers = np.ones(each * f.cdus, dtype=bool)
    peers[mine] = False
    return mine, peers


def _ports(run: _Run) -> tuple[Ints, Bools]:
    """Where the fault shows, and the ports of that tier and leaf."""
    f, fault = run.fleet, run.fault
    n, links = f.gpus, f.fabric_links
    peers = np.zeros(2 * n + 2 * links, dtype=bool)
    if CAUSES[fault.cause].entity_kind == "hca":
        mine = np.array([n + fault.index])
        peers[n + np.flatnonzero(f.gpu_leaf == f.gpu_leaf[fault.index])] = True
    else:
        leaf = np.flatnonzero(f.up_leaf == f.up_leaf[fault.index])
        own = [2 * n + fault.index]
        if fault.cause == "bad_cable":
            own.append(2 * n + links + fault.index)
        if fault.cause == "downed_uplink":
            loads = run.series("port", "xmit_data_bytes")[-60]
            own.append(int(2 * n + leaf[np.argmax(loads[2 * n + leaf])]))
        mine = np.array(own)
        peers[2 * n + leaf] = True
    peers[mine] = False
    return mine, peers


def _panel(
    values: Floats, mine: Ints, peers: Bools, title: str, marks: tuple[float, ...],
    called: str = "other racks",
) -> Panel:  # fmt: skip
    others = values[:, peers]
    low, middle, high = np.nanquantile(others, [0.05, 0.5, 0.95], axis=1)
    lines = [Line(f"{called}, median", middle.tolist(), _BLUE)]
    shades = (_RED, "#e67e22", "#8e44ad", "#16a085")
    for number, entity in enumerate(mine[:4]):
        label = "the culprit" if number == 0 else f"with it ({number})"
        lines.append(Line(label, values[:, entity].tolist(), shades[number]))
    return Panel(title, lines, (low.tolist(), high.tolist()), marks)


def write_plots(folder: Path) -> list[Path]:
    """One SVG per cause."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for cause in CAUSES:
        path = folder / f"{cause}.svg"
        path.write_text(signature(cause), encoding="utf-8")
        made.append(path)
    return made
