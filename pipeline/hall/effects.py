"""What the faults in force do to the hall, as arrays that the physics reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from pipeline.hall.faults import Fault, module_of
from pipeline.hall.fleet import Fleet


class Effects:
    """Neutral values, changed by each fault in force.

    GPU arrays: ``clock_cap`` (ratio of nominal), ``app_clocks`` and ``brake`` (which bit shows),
    ``plate`` (thermal resistance), ``stall`` (host stalls per compute time), ``memory`` (time
    lost to memory errors), ``flap`` (share of time lost to link recoveries), ``lost``.
    Rack arrays: ``area`` (flow area left), ``bypass_k``, ``valve_cap``, ``leak_lpm``, ``meter``,
    ``off``. CDU arrays: ``head``, ``setpoint_k``, ``loss``.
    Fabric arrays: ``down_cap`` (leaf to HCA), ``up_cap`` and ``back_cap`` (leaf to spine and
    back), ``up_dead``, ``moved_load`` (loads that a dead link's neighbour gets on top, in
    links), ``up_extra`` (share of its own load on top), ``incast`` (line rates on top),
    ``spine_symbols`` and ``leaf_symbols`` (errors per second received at either end of a link).
    Job arrays: ``ib_scale``, ``stage_extra``.
    """

    def __init__(self, fleet: Fleet, jobs: int) -> None:
        n, racks, cdus, links = fleet.gpus, fleet.racks, fleet.cdus, fleet.fabric_links
        self.fleet = fleet
        self.clock_cap = np.full(n, np.inf)
        self.app_clocks = np.zeros(n, dtype=bool)
        self.brake = np.zeros(n, dtype=bool)
        self.plate = np.ones(n)
        self.stall = np.zeros(n)
        self.host_busy = np.zeros(fleet.cpus)
        self.memory = np.zeros(n)
        self.pcie_down = np.zeros(n, dtype=bool)
        self.flap = np.zeros(n)
        self.lost = np.zeros(n, dtype=bool)
        self.area = np.ones(racks)
        self.bypass_k = np.zeros(racks)
        self.valve_cap = np.ones(racks)
        self.leak_lpm = np.zeros(racks)
        self.meter = np.ones(racks)
        self.off = np.zeros(racks, dtype=bool)
        self.head = np.ones(cdus)
        self.setpoint_k = np.zeros(cdus)
        self.filter = np.ones(cdus)
        self.down_cap = np.ones(n)
        self.incast = np.zeros(n)
        self.up_cap = np.ones(links)
        self.back_cap = np.ones(links)
        self.up_dead = np.zeros(links, dtype=bool)
        self.moved_load = np.zeros(links)
        self.up_extra = np.zeros(links)
        self.spine_symbols = np.zeros(links)
        self.leaf_symbols = np.zeros(links)
        self.ib_scale = np.ones(jobs)
        self.stage_extra = np.zeros(jobs)

    def add(self, faults: Iterable[Fault], at: float) -> None:
        """Put the faults in force at a time (seconds since 1970) on top."""
        for fault in faults:
            level = fault.level(at)
            change = _CHANGES.get(fault.cause)
            if level > 0.0 and change is not None:
                change(self, fault.index, level)


def _capped_clocks(e: Effects, i: int, level: float) -> None:
    e.clock_cap[i] = min(e.clock_cap[i], 1.0 - level)
    e.app_clocks[i] = True


def _degrading_cold_plate(e: Effects, i: int, level: float) -> None:
    e.plate[i] *= 1.0 + level


def _host_interference(e: Effects, i: int, level: float) -> None:
    e.stall[i] += level
    e.host_busy[e.fleet.gpu_cpu[i]] += 1.6 * level


def _power_brake(e: Effects, i: int, level: float) -> None:
    e.clock_cap[i] = min(e.clock_cap[i], 1.0 - level)
    e.brake[i] = True


def _hbm_error_storm(e: Effects, i: int, level: float) -> None:
    e.memory[i] += level


def _pcie_downtrain(e: Effects, i: int, level: float) -> None:
    e.stall[i] += level
    e.pcie_down[i] = True


def _nvlink_flapping(e: Effects, i: int, level: float) -> None:
    e.flap[i] += level


def _gpu_lost(e: Effects, i: int, level: float) -> None:
    e.lost[i] = True


def _blocked_quick_disconnect(e: Effects, i: int, level: float) -> None:
    e.area[i] *= 1.0 - level


def _supply_drift(e: Effects, i: int, level: float) -> None:
    e.bypass_k[i] += level


def _tired_pump(e: Effects, i: int, level: float) -> None:
    e.head[i] *= 1.0 - level


def _valve_stuck(e: Effects, i: int, level: float) -> None:
    e.valve_cap[i] = min(e.valve_cap[i], 1.0 - level)


def _setpoint_drift(e: Effects, i: int, level: float) -> None:
    e.setpoint_k[i] += level


def _small_leak(e: Effects, i: int, level: float) -> None:
    e.leak_lpm[i] += level


def _fouled_filter(e: Effects, i: int, level: float) -> None:
    e.filter[i] += level


def _lying_flow_meter(e: Effects, i: int, level: float) -> None:
    e.meter[i] *= 1.0 - level


def _bad_cable(e: Effects, i: int, level: float) -> None:
    e.up_cap[i] = min(e.up_cap[i], 1.0 - level)
    e.back_cap[i] = min(e.back_cap[i], 1.0 - 0.4 * level)
    # Rates that keep the 16-bit symbol counter below its end for some hours.
    e.spine_symbols[i] += 9.0 * level
    e.leaf_symbols[i] += 2.5 * level


def _downed_uplink(e: Effects, i: int, level: float) -> None:
    first, second, neighbour = module_of(e.fleet, i)
    for link in (first, second):
        e.up_dead[link] = True
    e.moved_load[neighbour] += level


def _slow_receiver(e: Effects, i: int, level: float) -> None:
    e.down_cap[i] = min(e.down_cap[i], 1.0 - level)


def _routing_imbalance(e: Effects, i: int, level: float) -> None:
    e.up_extra[i] += level


def _incast(e: Effects, i: int, level: float) -> None:
    e.incast[i] += level


def _facility(e: Effects, i: int, level: float) -> None:
    e.setpoint_k += level


def _maintenance(e: Effects, i: int, level: float) -> None:
    e.off[i] = True


def _balanced_saturation(e: Effects, i: int, level: float) -> None:
    e.ib_scale[i] *= 1.0 + level


def _stage_imbalance(e: Effects, i: int, level: float) -> None:
    e.stage_extra[i] += level


_CHANGES: dict[str, Callable[[Effects, int, float], None]] = {
    "capped_clocks": _capped_clocks,
    "degrading_cold_plate": _degrading_cold_plate,
    "host_interference": _host_interference,
    "power_brake": _power_brake,
    "hbm_error_storm": _hbm_error_storm,
    "pcie_downtrain": _pcie_downtrain,
    "nvlink_flapping": _nvlink_flapping,
    "gpu_lost": _gpu_lost,
    "blocked_quick_disconnect": _blocked_quick_disconnect,
    "supply_drift": _supply_drift,
    "tired_pump": _tired_pump,
    "valve_stuck": _valve_stuck,
    "setpoint_drift": _setpoint_drift,
    "small_leak": _small_leak,
    "fouled_filter": _fouled_filter,
    "lying_flow_meter": _lying_flow_meter,
    "bad_cable": _bad_cable,
    "downed_uplink": _downed_uplink,
    "slow_receiver": _slow_receiver,
    "routing_imbalance": _routing_imbalance,
    "incast": _incast,
    "setpoint_change": _facility,
    "hot_day": _facility,
    "maintenance": _maintenance,
    "balanced_saturation": _balanced_saturation,
    "stage_imbalance": _stage_imbalance,
}
