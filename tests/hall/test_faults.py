"""Every fault shows what its label says, from the labelled moment on, and nothing before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.hall.births import draw_births
from pipeline.hall.draw import Drawer
from pipeline.hall.faults import BENIGN_KINDS, CAUSES, Fault, make_benign, make_fault
from pipeline.hall.fleet import build_fleet
from pipeline.hall.kmsg import lines_of
from tests.hall.helpers import START, Watched, ports_of, ratio, watch

_RACKS, _SEED = 8, 12
_FLEET = build_fleet(_RACKS, _SEED)
_BEGIN = START + 120.0


def _fault(cause: str) -> Fault:
    """The mildest fault of that cause that a draw takes."""
    drawer = Drawer(_FLEET, draw_births(_FLEET), START, 9)
    fault = drawer.one([cause], _BEGIN, START + 3600.0)
    low = CAUSES[cause].severity[0]
    if cause in ("bad_cable", "downed_uplink"):
        return fault  # the draw looks at the link's load
    return replace(fault, severity=low)


def _run(fault: Fault | None, minutes: float) -> Watched:
    return watch(_FLEET, [fault] if fault else [], minutes)


def _shown(sick: Watched, well: Watched, fault: Fault, last: int) -> dict[str, float]:
    """Effects on the fault's entity, against the same hall without the fault."""
    if fault.detector == "straggler_gpu":
        i = fault.index
        peers = sick.hall.schedule.gpu_partition == sick.hall.schedule.gpu_partition[i]
        peers[i] = False
        return {
            "clock": 1 - float(ratio(sick, well, "sm_clock_mhz")[i]),
            "heat_k": float((sick.mean("gpu", "gpu_temp_c", last)
                             - well.mean("gpu", "gpu_temp_c", last))[i]),
            "stall": 1 - float(ratio(sick, well, "gr_engine_active_ratio")[i]),
            "job": 1 - float(np.median(ratio(sick, well, "tensor_active_ratio")[peers])),
            "recoveries": float(sick.rate("gpu", "nvlink_recovery_events", last)[i]),
            "ecc": float(sick.rate("gpu", "ecc_sbe_volatile", last)[i]),
            "gen": float(sick.seen[-1].gpu["pcie_link_gen"][i]),
            "seen": float(np.mean([o.gpu_seen[i] for o in sick.seen[-last:]])),
        }  # fmt: skip
    if fault.detector == "hot_rack":
        racks = (
            np.flatnonzero(_FLEET.rack_cdu == fault.index)
            if fault.entity_kind == "cdu" else np.array([fault.index])
        )  # fmt: skip
        mine = np.isin(_FLEET.gpu_rack, racks)
        hotter = sick.mean("gpu", "gpu_temp_c", last) - well.mean("gpu", "gpu_temp_c", last)
        heat = sick.mean("connector", "heat_removed_kw", last)[racks]
        power = sick.mean("rack", "power_w", last)[racks] / 1e3
        return {
            "heat_k": float(np.median(hotter[mine])),
            "others_k": float(np.abs(np.median(hotter[~mine]))),
            "balance": float(np.min(heat / power)),
            "wet": float((sick.seen[-1].leak["voltage_v"] < 1.3).sum()),
            "filter": float(
                np.max(sick.mean("cdu", "filter_pressure_kpa", last)
                       / well.mean("cdu", "filter_pressure_kpa", last))
            ),
        }  # fmt: skip
    ports = ports_of(_FLEET, [fault.entity, *fault.also])
    return {
        "lost": float((sick.lost(last) - well.lost(last))[ports].max()),
        "symbols": float(sick.rate("port", "symbol_errors", last)[ports].max()),
        "used": float(sick.used(last)[ports].max()),
    }


# What a detector can hold against the entity, at the mildest severity: (effect, at least).
_EXPECTED: dict[str, dict[str, tuple[float, float]]] = {
    "capped_clocks": {"clock": (0.12, 0.32), "job": (0, 0.4)},
    "degrading_cold_plate": {"heat_k": (6, 40), "clock": (0.03, 0.4)},
    "host_interference": {"stall": (0.12, 0.4), "clock": (-0.04, 0.04), "job": (0.05, 0.4)},
    "power_brake": {"clock": (0.2, 0.55)},
    "hbm_error_storm": {"ecc": (10, 1e6), "seen": (0.3, 0.95), "job": (0.02, 0.4)},
    "pcie_downtrain": {"gen": (3, 3), "stall": (0.08, 0.4)},
    "nvlink_flapping": {"recoveries": (0.02, 10), "job": (0, 0.4)},
    "gpu_lost": {"seen": (0, 0), "job": (0.9, 1)},
    "blocked_quick_disconnect": {"heat_k": (6, 30), "others_k": (0, 1.5)},
    "supply_drift": {"heat_k": (6, 14), "others_k": (0, 1.5)},
    "tired_pump": {"heat_k": (4, 30), "others_k": (0, 1.5)},
    "valve_stuck": {"heat_k": (4, 30), "others_k": (0, 1.5)},
    "setpoint_drift": {"heat_k": (4, 12), "others_k": (0, 1.5)},
    "small_leak": {"wet": (1, 1), "heat_k": (-1, 1)},
    "fouled_filter": {"filter": (1.5, 9)},
    "lying_flow_meter": {"balance": (0.4, 0.7), "heat_k": (-5, 1.5)},
    "bad_cable": {"lost": (0.12, 0.9), "symbols": (1, 20)},
    "downed_uplink": {"lost": (0.12, 0.9), "used": (0.75, 1.0)},
    "slow_receiver": {"lost": (0.2, 0.9)},
    "routing_imbalance": {"lost": (0.1, 0.9), "used": (0.75, 1.0)},
    "incast": {"lost": (0.1, 0.9), "used": (0.75, 1.0)},
}


@pytest.fixture(scope="module")
def well() -> Watched:
    return _run(None, 12)


@pytest.mark.parametrize("cause", list(CAUSES))
def test_the_mildest_fault_shows(cause: str, well: Watched) -> None:
    fault = _fault(cause)
    if cause == "fouled_filter":
        fault = replace(fault, ramp_s=60.0)  # ten minutes otherwise
    sick = _run(fault, 12)
    shown = _shown(sick, well, fault, 24)
    for name, (low, high) in _EXPECTED[cause].items():
        assert low <= shown[name] <= high, (name, shown)


@pytest.mark.parametrize("cause", [name for name, cause in CAUSES.items() if cause.drawn])
def test_it_can_be_seen_from_the_labelled_moment(cause: str) -> None:
    fault = _fault(cause)
    assert fault.visible_from <= fault.start + 150
    minutes = (fault.visible_from - START + 60) / 60
    well, sick = _run(None, minutes), _run(fault, minutes)
    shown = _shown(sick, well, fault, 5)
    shown = {"clock": 0, "stall": 0, "lost": 0, "heat_k": 0, **shown}
    # The smallest effects that a detector may page for: 5 % clock, 4 K, 10 % lost bandwidth.
    assert (
        shown["clock"] > 0.05 or shown["stall"] > 0.05
        or shown["heat_k"] > 4 or shown["lost"] > 0.10
    ), shown  # fmt: skip


def test_nothing_shows_before_a_fault_starts_and_little_after_it_ends(well: Watched) -> None:
    fault = replace(_fault("degrading_cold_plate"), end=_BEGIN + 180.0)
    sick = _run(fault, 12)
    for a, b in zip(sick.seen, well.seen, strict=True):
        if a.at <= fault.start:
            for name, values in a.gpu.items():
                np.testing.assert_array_equal(values, b.gpu[name])
    end = sick.seen[-1].gpu, well.seen[-1].gpu
    assert abs(end[0]["gpu_temp_c"][fault.index] - end[1]["gpu_temp_c"][fault.index]) <= 2
    assert end[0]["thermal_violation_ns"][fault.index] > 0


def test_healthy_gpus_differ_by_about_eight_percent() -> None:
    # SC'22 (arXiv 2208.11035): 8 % on average between identical GPUs.
    fleet = build_fleet(16, 5)
    seen = watch(fleet, [], 5)
    busy = seen.mean("gpu", "tensor_active_ratio") > 0.3
    clocks = seen.mean("gpu", "sm_clock_mhz")[busy]
    spread = (np.quantile(clocks, 0.99) - np.quantile(clocks, 0.01)) / np.median(clocks)
    assert 0.05 < spread < 0.11
    assert clocks.min() < 0.95 * np.median(clocks)  # some are born slow


def test_a_healthy_hall_is_noisy_and_quiet_at_once() -> None:
    """Nothing in it reaches the smallest effects, and nothing in it stands still."""
    seen = watch(build_fleet(8, 77), [], 20)
    assert seen.lost(60).max() < 0.05
    assert (seen.seen[-1].gpu["gpu_temp_c"] < 80).all()
    assert (seen.rate("gpu", "thermal_violation_ns", 60) == 0).all()
    power = np.array([o.gpu["power_w"] for o in seen.seen[-60:]])
    assert (power.std(axis=0) > 0.2).all()
    flow = np.array([o.connector["flow_lpm"] for o in seen.seen[-60:]])
    assert (flow.std(axis=0) > 0.1).all()


@pytest.mark.parametrize("kind", list(BENIGN_KINDS))
def test_harmless_events_are_harmless(kind: str) -> None:
    entity = {
        "maintenance": "rack-02", "balanced_saturation": "partition-0",
        "stage_imbalance": "partition-0", "setpoint_change": "", "hot_day": "",
    }.get(kind, "rack-01-tray-04")  # fmt: skip
    level = {"balanced_saturation": 0.55, "stage_imbalance": 0.06, "setpoint_change": 3.0,
             "hot_day": 2.0}.get(kind, 1.0)  # fmt: skip
    event = make_benign(_FLEET, kind, entity, _BEGIN, START + 3600, level=level)
    assert event.benign
    seen = watch(_FLEET, [event], 10)
    assert (seen.seen[-1].gpu["gpu_temp_c"] < 84).all()
    assert (seen.rate("gpu", "thermal_violation_ns", 30) == 0).all()
    last = seen.seen[-1]
    hosts = np.flatnonzero(~last.host_seen)
    if kind == "balanced_saturation":
        n, links = _FLEET.gpus, _FLEET.fabric_links
        by_leaf = seen.lost(12)[2 * n : 2 * n + links].reshape(_FLEET.leaves, -1)
        assert (by_leaf.max(axis=1) < 3 * np.median(by_leaf, axis=1) + 0.02).all()
        assert seen.used(12)[:n].max() > 0.7
    elif kind in ("driver_upgrade", "missing_scrapes", "exporter_restart"):
        assert hosts.tolist() == [3]
    elif kind == "maintenance":
        assert hosts.tolist() == list(range(18, 36))
        assert last.rack["power_w"][1] < 5000
    elif kind == "blank_readings":
        assert np.isnan(last.gpu["power_w"][12:16]).all()
        assert np.isfinite(np.delete(last.gpu["power_w"], range(12, 16))).all()
    elif kind == "frozen_page":
        frozen = [tuple(o.gpu["power_w"][12:16]) for o in seen.seen[-30:]]
        assert len(set(frozen)) == 1
    elif kind in ("setpoint_change", "hot_day"):
        supply = seen.mean("connector", "supply_temp_c") - seen.seen[5].connector["supply_temp_c"]
        assert np.ptp(supply) < 0.6  # all together
        assert supply.mean() > level - 1


def test_an_exporter_that_restarts_resets_no_counter_and_lacks_profiling_at_first() -> None:
    event = make_benign(_FLEET, "exporter_restart", "rack-01-tray-04", _BEGIN, _BEGIN + 120)
    seen = watch(_FLEET, [event], 8)
    before, away, back, later = (
        next(o for o in seen.seen if o.at == _BEGIN + at) for at in (0, 60, 120, 150)
    )
    assert np.flatnonzero(~away.host_seen).tolist() == [3]
    assert back.host_seen.all()
    mine = slice(12, 16)
    assert np.isnan(back.gpu["tensor_active_ratio"][mine]).all()
    assert np.isfinite(np.delete(back.gpu["tensor_active_ratio"], range(12, 16))).all()
    assert np.isfinite(back.gpu["power_w"]).all()
    assert np.isfinite(later.gpu["tensor_active_ratio"]).all()
    assert (back.gpu["energy_mj"] > before.gpu["energy_mj"])[mine].all()


def test_the_driver_says_what_happened_once() -> None:
    fault = make_fault(_FLEET, "gpu_lost", "rack-01/tray-01/slot-2", _BEGIN)
    before = lines_of(_FLEET, [fault], START, _BEGIN)
    after = lines_of(_FLEET, [fault], _BEGIN, _BEGIN + 10)
    later = lines_of(_FLEET, [fault], _BEGIN + 10, _BEGIN + 7200)
    assert not before
    assert not later
    assert any("Xid (PCI:0018:06:00): 79" in line.text for line in after)
    assert {line.tray for line in after} == {0}


def test_an_unknown_cause_is_refused() -> None:
    with pytest.raises(ConfigError, match="capped_clocks"):
        make_fault(_FLEET, "gremlins", "rack-01", START)
    with pytest.raises(ConfigError, match="hot_day"):
        make_benign(_FLEET, "gremlins", "", START, START + 1)
    with pytest.raises(ConfigError, match="leaf-r1-1/73"):
        make_fault(_FLEET, "bad_cable", "leaf-r1-1/3", START)
