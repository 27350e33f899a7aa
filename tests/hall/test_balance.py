"""Energy and traffic balances, and counters that only rise, over random scenarios."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipeline.hall.births import draw_births
from pipeline.hall.draw import Drawer
from pipeline.hall.engine import Hall
from pipeline.hall.faults import CAUSES, Fault, make_benign
from pipeline.hall.fleet import build_fleet
from pipeline.hall.observe import Observer
from tests.hall.helpers import START, counters_of

_LINE = 100e9
_SLOW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _random_faults(racks: int, seed: int, count: int) -> list[Fault]:
    fleet = build_fleet(racks, seed)
    drawer = Drawer(fleet, draw_births(fleet), START, seed)
    causes = [name for name in CAUSES if name != "gpu_lost"]
    return drawer.many(causes, count, START + 60, START + 1200, (3, 6)) if count else []


@_SLOW
@given(racks=st.integers(2, 9), seed=st.integers(0, 10_000), count=st.integers(0, 3))
def test_what_enters_a_leaf_leaves_it_and_cable_ends_agree(
    racks: int, seed: int, count: int
) -> None:
    fleet = build_fleet(racks, seed)
    hall = Hall(fleet, START, _random_faults(racks, seed, count))
    observer = Observer(hall)
    n, links = fleet.gpus, fleet.fabric_links
    before = observer.observe(links=False)
    for _ in range(60):
        hall.advance(10.0)
    after = observer.observe(links=False)
    sent = after.port["xmit_data_bytes"] - before.port["xmit_data_bytes"]
    received = after.port["rcv_data_bytes"] - before.port["rcv_data_bytes"]
    hca, leaf_down = slice(0, n), slice(n, 2 * n)
    leaf_up, spine = slice(2 * n, 2 * n + links), slice(2 * n + links, None)
    # Both ends of each cable agree, to the byte.
    for near, far in ((hca, leaf_down), (leaf_down, hca), (leaf_up, spine), (spine, leaf_up)):
        np.testing.assert_array_equal(sent[near], received[far])
    # A leaf passes on what it receives; counters move by whole bursts, hence the slack.
    into = np.bincount(fleet.gpu_leaf, received[leaf_down], fleet.leaves)
    into += np.bincount(fleet.up_leaf, received[leaf_up], fleet.leaves)
    out = np.bincount(fleet.gpu_leaf, sent[leaf_down], fleet.leaves)
    out += np.bincount(fleet.up_leaf, sent[leaf_up], fleet.leaves)
    np.testing.assert_allclose(into, out, rtol=1e-4)
    # So does a spine.
    np.testing.assert_allclose(
        np.bincount(fleet.up_spine, received[spine], fleet.spines),
        np.bincount(fleet.up_spine, sent[spine], fleet.spines),
        rtol=1e-4,
    )
    # NVLink: what a rack's GPUs send, they receive.
    tx = (after.gpu["nvlink_tx_bytes"] - before.gpu["nvlink_tx_bytes"]).reshape(racks, -1)
    rx = (after.gpu["nvlink_rx_bytes"] - before.gpu["nvlink_rx_bytes"]).reshape(racks, -1)
    np.testing.assert_allclose(tx.sum(axis=1), rx.sum(axis=1), rtol=1e-6)


@_SLOW
@given(racks=st.integers(1, 9), seed=st.integers(0, 10_000), count=st.integers(0, 3))
def test_counters_rise_and_no_link_carries_more_than_its_rate(
    racks: int, seed: int, count: int
) -> None:
    fleet = build_fleet(racks, seed)
    hall = Hall(fleet, START, _random_faults(racks, seed, count if racks > 1 else 0))
    observer = Observer(hall)
    before = observer.observe()
    for _ in range(24):
        hall.advance(10.0)
        after = observer.observe()
        for part, columns in counters_of(after).items():
            for name, values in columns.items():
                if name.endswith(("_ns", "_bytes", "_packets", "_ticks", "_mj", "_j", "_hours")):
                    earlier = getattr(before, part)[name]
                    assert (values >= earlier).all(), f"{part}.{name} fell"
                    assert (values == np.floor(values)).all(), f"{part}.{name} is not whole"
        for name in ("xmit_data_bytes", "rcv_data_bytes"):
            rate = (after.port[name] - before.port[name]) / 10.0
            assert rate.max() <= _LINE * 1.0001
        # Time that a port sends and time that it waits do not add up to more than there is.
        wait = (after.port["xmit_wait_ticks"] - before.port["xmit_wait_ticks"]) * 8 / 10.0
        sent = (after.port["xmit_data_bytes"] - before.port["xmit_data_bytes"]) / 10.0
        assert (wait + sent).max() <= _LINE * 1.0001
        assert after.gpu["power_w"].max() < 1400 * 1.03  # the limit, and the meter's noise
        assert (after.gpu["gpu_temp_c"] < 100).all()
        before = after


@_SLOW
@given(racks=st.integers(1, 4), seed=st.integers(0, 10_000), upgrades=st.integers(0, 3))
def test_counters_fall_only_where_a_reset_is_labelled(racks: int, seed: int, upgrades: int) -> None:
    fleet = build_fleet(racks, seed)
    drawer = Drawer(fleet, draw_births(fleet), START, seed)
    events = _random_faults(racks, seed, 2 if racks > 1 else 0)
    events += drawer.benign(10, START, START + 1200)  # one of each kind
    for number in range(upgrades):
        host = fleet.hosts[(seed + 5 * number) % fleet.trays]
        events.append(make_benign(fleet, "driver_upgrade", host, START + 60, START + 300.0))
    hall = Hall(fleet, START, events)
    observer = Observer(hall)
    labelled = {event.index for event in events if event.cause == "driver_upgrade"}
    fallen: set[int] = set()
    before = observer.observe()
    for _ in range(120):
        hall.advance(10.0)
        after = observer.observe()
        for part, columns in counters_of(after).items():
            for name, values in columns.items():
                if name.endswith(("_ns", "_bytes", "_packets", "_ticks", "_mj", "_j", "_hours")):
                    low = np.flatnonzero(values < getattr(before, part)[name])
                    assert part == "gpu" or not low.size, f"{part}.{name} fell"
                    fallen |= {int(gpu) // 4 for gpu in low}
        before = after
    assert fallen <= labelled
    ended = {event.index for event in events
             if event.cause == "driver_upgrade" and event.end <= hall.at}  # fmt: skip
    assert fallen == ended


@_SLOW
@given(racks=st.integers(2, 12), seed=st.integers(0, 10_000))
def test_heat_removed_and_heat_to_air_are_the_electrical_power(racks: int, seed: int) -> None:
    fleet = build_fleet(racks, seed)
    hall = Hall(fleet, START)
    observer = Observer(hall)
    power, removed, air, before = [], [], [], []
    for step in range(120):
        hall.advance(10.0)
        before.append(hall.now.rack_power_w)
        if step >= 60:  # ten minutes after the start, over ten minutes
            o = observer.observe(links=False)
            c = o.connector
            rise = c["return_temp_c"] - c["supply_temp_c"]
            # kg/s times kJ/(kg K): 1.03 kg/L and 3.974 kJ/(kg K) for water with glycol.
            removed.append(c["flow_lpm"] / 60 * 1.03 * 3.974 * rise * 1e3)
            air.append(hall.loops.air_w)
            power.append(o.rack["power_w"])
            np.testing.assert_allclose(removed[-1] / 1e3, c["heat_removed_kw"], rtol=1e-3)
    # Steady: also before, since heat in metal and water comes out minutes later.
    steady = np.std(before[25:], axis=0) < 0.03 * np.mean(before[25:], axis=0)
    total = np.mean(removed, axis=0) + np.mean(air, axis=0)
    assume(steady.any())  # no checkpoint, start or stop in every rack just then
    np.testing.assert_allclose(total[steady], np.mean(power, axis=0)[steady], rtol=0.02)
    # About 85 % leaves with the coolant.
    share = np.mean(removed, axis=0)[steady] / np.mean(power, axis=0)[steady]
    assert share.min() > 0.80
    assert share.max() < 0.90


def test_heat_of_gpus_reaches_the_cold_plates() -> None:
    fleet = build_fleet(2, 3)
    hall = Hall(fleet, START)
    for _ in range(60):
        hall.advance(10.0)
    # In a steady state what the temperatures drive through the cold plates is the power.
    local = hall.loops.rack_supply_c[fleet.gpu_rack]
    rise = (hall.loops.rack_return_c - hall.loops.rack_supply_c)[fleet.gpu_rack]
    local = local + np.array([0.22, 0.22, 0.62, 0.62])[fleet.gpu_slot] * rise
    flow = (hall.loops.flow_lpm / 140.0)[fleet.gpu_rack]
    path = hall.births.r_core * (0.62 + 0.38 * flow**-0.8)
    busy = hall.now.work.busy > 0.3
    driven = ((hall.state.core_c - local) / path)[busy].sum()
    assert abs(driven / hall.now.power_w[busy].sum() - 1) < 0.05
