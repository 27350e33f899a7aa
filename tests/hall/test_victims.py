"""Victims look like victims, culprits like culprits."""

from __future__ import annotations

import numpy as np

from pipeline.hall.faults import make_fault
from tests.hall.helpers import START, ports_of, ratio, with_and_without

_GPU = "rack-01/tray-03/slot-1"


def test_one_slow_gpu_makes_all_others_of_its_job_wait() -> None:
    sick, well, fault = with_and_without(
        lambda fleet: make_fault(fleet, "capped_clocks", _GPU, START + 60, severity=0.25)
    )
    part = sick.hall.schedule.gpu_partition
    peers = part == part[fault.index]
    peers[fault.index] = False
    tensor = ratio(sick, well, "tensor_active_ratio")
    # The others' tensor activity falls together: all by about the same share.
    assert tensor[peers].max() < 0.90
    assert np.std(tensor[peers]) < 0.03
    # The culprit is the busy one, and its clock family differs.
    assert tensor[fault.index] > tensor[peers].max() + 0.1
    clock = sick.mean("gpu", "sm_clock_mhz") / well.mean("gpu", "sm_clock_mhz")
    assert clock[fault.index] < 0.85
    assert np.median(clock[peers]) > 0.99
    assert int(sick.seen[-1].gpu["clocks_event_reasons"][fault.index]) & 0x2
    # GPU_UTIL tells nothing: victims spin in the collective.
    assert np.median(sick.mean("gpu", "gpu_util_percent")[peers]) > 97
    # Jobs of other partitions go on as before.
    others = (part != part[fault.index]) & (well.mean("gpu", "tensor_active_ratio") > 0.2)
    assert others.any()
    assert abs(np.median(tensor[others]) - 1) < 0.01


def test_a_late_host_leaves_its_gpu_idle_while_peers_spin() -> None:
    sick, well, fault = with_and_without(
        lambda fleet: make_fault(fleet, "host_interference", _GPU, START + 60, severity=0.35)
    )
    part = sick.hall.schedule.gpu_partition
    peers = part == part[fault.index]
    peers[fault.index] = False
    engine = sick.mean("gpu", "gr_engine_active_ratio")
    assert engine[fault.index] < 0.85
    assert engine[peers].min() > 0.98
    tensor = ratio(sick, well, "tensor_active_ratio")
    assert tensor[peers].max() < 0.9
    clock = sick.mean("gpu", "sm_clock_mhz") / well.mean("gpu", "sm_clock_mhz")
    assert abs(clock[fault.index] - 1) < 0.03
    cpu = sick.hall.fleet.gpu_cpu[fault.index]
    util = sick.mean("cpu", "util_percent") - well.mean("cpu", "util_percent")
    assert util[cpu] > 30
    assert np.abs(np.delete(util, cpu)).max() < 10


def test_behind_a_slow_receiver_those_wait_that_feed_it() -> None:
    sick, well, fault = with_and_without(
        lambda fleet: make_fault(fleet, "slow_receiver", _GPU, START + 60, severity=0.6)
    )
    fleet = sick.hall.fleet
    n, links = fleet.gpus, fleet.fabric_links
    more = sick.lost() - well.lost()
    (leaf_port,) = ports_of(fleet, list(fault.also))
    leaf = fleet.gpu_leaf[fault.index]
    assert more[leaf_port] > 0.3
    # Upstream: spines' ports down to that leaf, adapters on it, and further up others' uplinks.
    to_leaf = 2 * n + links + np.flatnonzero(fleet.up_leaf == leaf)
    on_leaf = np.flatnonzero((fleet.gpu_leaf == leaf) & (sick.used()[:n] > 0.2))
    assert more[to_leaf].min() > 0.03
    assert np.median(more[on_leaf]) > 0.015
    # Less and less, the further from the root.
    assert more[leaf_port] > 2 * more[to_leaf].max()
    # Not downstream or aside: other leaves' ports down to their adapters.
    others = n + np.flatnonzero(fleet.gpu_leaf != leaf)
    assert more[others].max() < 0.01
    # The receiver itself and its job get less; the job's other members wait as well.
    assert sick.used()[leaf_port] < well.used()[leaf_port]


def test_a_dead_module_overloads_its_neighbour_only() -> None:
    sick, well, fault = with_and_without(
        lambda fleet: make_fault(fleet, "downed_uplink", "leaf-r1-1/81", START + 60, severity=4.5)
    )
    fleet = sick.hall.fleet
    own, *also = ports_of(fleet, [fault.entity, *fault.also])
    used, lost = sick.used(), sick.lost()
    downs = sick.seen[-1].port["link_downs"] - well.seen[-1].port["link_downs"]
    assert used[own] < 1e-6
    assert downs[own] == 1
    assert np.isnan(sick.seen[-1].port["rate_gbps"][own])
    neighbour = max(also, key=lambda port: used[port])
    assert used[neighbour] > 2 * well.used()[neighbour]
    assert lost[neighbour] > 0.15
    n = fleet.gpus
    same_leaf = 2 * n + np.flatnonzero(fleet.up_leaf == fleet.up_leaf[fault.index])
    rest = [port for port in same_leaf if port not in (own, *also)]
    assert lost[rest].max() < 0.05
