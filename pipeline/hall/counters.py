"""Counters of the hall: they only ever rise, but for a labelled reset.

They are float64 whole numbers: that is what the exporters' text format can carry, so pages and
rows written straight to Kafka agree to the last digit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import noise
from pipeline.hall.fleet import Fleet, Floats

_START = 104


@dataclass
class Counters:
    """Per GPU: energy (mJ), times held down (ns), NVLink bytes and recoveries, memory errors,
    PCIe. Per NVLink (GPU, link): recoveries, downs, symbol errors, retries. Per fabric
    direction (out, into, up, back): bytes, packets, wait ticks, discards, and what the
    receiving end counts: symbol errors and recoveries. Per cable: downs. Per rack: energy (J).
    """

    energy_mj: Floats
    power_violation_ns: Floats
    thermal_violation_ns: Floats
    sw_thermal_ns: Floats
    hw_thermal_ns: Floats
    brake_ns: Floats
    nvlink_tx: Floats
    nvlink_rx: Floats
    ecc_sbe: Floats
    ecc_sbe_before: Floats
    row_remaps: Floats
    pcie_replays: Floats
    xid_last: Floats
    link_recoveries: Floats
    link_downs: Floats
    link_symbols: Floats
    link_retries: Floats
    link_wait: Floats
    bytes: Floats
    packets: Floats
    wait: Floats
    discards: Floats
    symbols: Floats
    recoveries: Floats
    rcv_errors: Floats
    host_cable_downs: Floats
    fabric_cable_downs: Floats
    rack_energy_j: Floats
    pump_hours: Floats


def fresh_counters(fleet: Fleet) -> Counters:
    """Counters of a hall that has run for some days: every part has its own history."""
    rng = noise.generator(fleet.seed, _START)
    n, links = fleet.gpus, fleet.fabric_links
    directions = 2 * n + 2 * links
    zeros = np.zeros
    days = rng.uniform(2.0, 40.0, n)
    traffic = np.floor(rng.uniform(1e13, 6e14, directions) / c.BURST_BYTES) * c.BURST_BYTES
    return Counters(
        energy_mj=np.floor(days * 86400 * 700e3),
        power_violation_ns=np.floor(days * 86400e9 * rng.uniform(0.0, 0.05, n)),
        thermal_violation_ns=zeros(n),
        sw_thermal_ns=zeros(n),
        hw_thermal_ns=zeros(n),
        brake_ns=zeros(n),
        nvlink_tx=np.floor(days * 86400 * 1e9 / c.BURST_BYTES) * c.BURST_BYTES,
        nvlink_rx=np.floor(days * 86400 * 1e9 / c.BURST_BYTES) * c.BURST_BYTES,
        ecc_sbe=zeros(n),
        ecc_sbe_before=rng.poisson(0.3, n).astype(float),
        row_remaps=(rng.random(n) < 0.01).astype(float),
        pcie_replays=rng.poisson(0.2, n).astype(float),
        xid_last=zeros(n),
        link_recoveries=(rng.random((n, c.NVLINKS)) < 0.002).astype(float),
        link_downs=zeros((n, c.NVLINKS)),
        link_symbols=zeros((n, c.NVLINKS)),
        link_retries=rng.poisson(3.0, (n, c.NVLINKS)).astype(float),
        link_wait=zeros((n, c.NVLINKS)),
        bytes=traffic,
        packets=traffic / c.PACKET_BYTES,
        wait=np.floor(rng.uniform(1e6, 2e9, directions)) * c.GAP_TICKS,
        discards=zeros(directions),
        symbols=rng.poisson(2.0, directions).astype(float),
        recoveries=(rng.random(directions) < 0.03).astype(float),
        rcv_errors=zeros(directions),
        host_cable_downs=rng.poisson(0.4, n).astype(float),
        fabric_cable_downs=rng.poisson(0.1, links).astype(float),
        rack_energy_j=np.floor(rng.uniform(1e10, 3e11, fleet.racks)),
        pump_hours=np.floor(rng.uniform(800, 9000, 2 * fleet.cdus)),
    )


def gpu_fields() -> tuple[str, ...]:
    """Counters that a driver restart sets back to zero."""
    return (
        "energy_mj", "power_violation_ns", "thermal_violation_ns", "sw_thermal_ns",
        "hw_thermal_ns", "brake_ns", "nvlink_tx", "nvlink_rx", "ecc_sbe", "xid_last",
        "link_recoveries", "link_downs", "link_symbols", "link_retries", "link_wait",
    )  # fmt: skip


def as_arrays(counters: Counters) -> dict[str, Floats]:
    """Counters by name, for a snapshot."""
    return {field.name: getattr(counters, field.name) for field in fields(counters)}


def copied(counters: Counters) -> Counters:
    """The same counts, which stay as they are."""
    return Counters(**{name: values.copy() for name, values in as_arrays(counters).items()})
