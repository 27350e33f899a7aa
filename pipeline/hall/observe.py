"""What the hall's instruments show: the state with the meters' noise, rounding and gaps.

One :class:`Observation` feeds all outlets, so pages and rows cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import noise
from pipeline.hall.counters import copied
from pipeline.hall.engine import Hall
from pipeline.hall.fleet import Bools, Floats, Ints

_METER = 107

IDLE, APP_CLOCKS, SW_POWER, HW_SLOWDOWN = 0x1, 0x2, 0x4, 0x8
SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x20, 0x40, 0x80

# What DCGM's profiling module measures: it starts later than the exporter.
_PROFILED = (
    "gr_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio",
    "dram_active_ratio", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
)  # fmt: skip

Columns = dict[str, Floats]


@dataclass
class Observation:
    """Readings at one time, seconds since 1970. NaN is "no reading".

    Attributes:
        gpu: per GPU, by contract column; ``gpu_seen`` says whose series are on the page.
        link: per GPU and NVLink, seen from the GPU; ``switch_link`` seen from the switch.
        cpu: per Grace CPU.
        port: per fabric port: HCAs, leaf ports down, leaf ports up, spine ports.
        host_seen: hosts whose page can be read.
        rack, connector, cdu, pump: per rack (power), rack loop, CDU loop, pump.
        leak: per leak detector, volts.
        driver: per tray, which driver version.
        ufm: what UFM adds to ``port``; empty where nobody asked for it.
    """

    at: float
    step: int
    gpu: Columns
    link: Columns
    switch_link: Columns
    cpu: Columns
    port: Columns
    rack: Columns
    connector: Columns
    cdu: Columns
    pump: Columns
    leak: Columns
    switch: Columns
    gpu_seen: Bools
    host_seen: Bools
    port_seen: Bools
    driver: Floats
    labels_version: tuple[int, bytes] = (-1, b"")
    job_ids: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    partition_gpus: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    ufm: Columns = field(default_factory=dict)


class Observer:
    """Reads a hall's instruments. Keeps only what a frozen exporter repeats.

    Args:
        ufm: whether what only UFM shows of the fabric is wanted.
    """

    def __init__(self, hall: Hall, *, ufm: bool = False) -> None:
        self.hall = hall
        self._wants_ufm = ufm
        self._counters = hall.counters
        self._frozen: dict[int, dict[str, Floats]] = {}
        self._labels: tuple[tuple[int, bytes], list[str], list[str]] = ((-1, b""), [], [])

    def observe(self, *, links: bool = True) -> Observation:
        """Readings now.

        Args:
            links: whether per-NVLink readings are wanted; they are many.
        """
        hall = self.hall
        # Counters go on in place; an observation must not.
        self._counters = copied(hall.counters)
        rng = noise.generator(hall.fleet.seed, _METER, hall.step)
        version = (hall.schedule.version, (hall.schedule.end <= hall.at).tobytes())
        if self._labels[0] != version:
            self._labels = (version, *hall.schedule.labels(hall.at))
        effects = hall.now.effects
        host_seen = ~np.repeat(effects.off, c.TRAYS)
        gpu = self._gpu(rng)
        seen = ~effects.lost & np.repeat(host_seen, c.GPUS_PER_TRAY)
        stormy = np.flatnonzero(effects.memory)
        if stormy.size:  # an ECC storm blocks the exporter: samples are lost
            seen[stormy] &= rng.random(stormy.size) > 1.3 * effects.memory[stormy]
        observation = Observation(
            at=hall.at,
            step=hall.step,
            gpu=gpu,
            link=self._link(rng) if links else {},
            switch_link=self._switch_link() if links else {},
            cpu=self._cpu(rng),
            port=self._port(),
            ufm=self._ufm() if self._wants_ufm else {},
            rack=self._rack(rng),
            connector=self._connector(rng),
            cdu=self._cdu(rng),
            pump=self._pump(rng),
            leak=self._leak(rng),
            switch=self._switch(rng),
            gpu_seen=seen,
            host_seen=host_seen,
            port_seen=self._port_seen(effects.off),
            driver=hall.state.driver.copy(),
            labels_version=version,
            job_ids=self._labels[1],
            roles=self._labels[2],
            partition_gpus=hall.schedule.members,
        )
        self._impair(observation, rng)
        return observation

    def _gpu(self, rng: np.random.Generator) -> Columns:
        hall, now, k = self.hall, self.hall.now, self._counters
        n = hall.fleet.gpus
        work, clocks, s = now.work, now.clocks, hall.state
        part = hall.schedule.gpu_partition
        normal = rng.standard_normal((9, n))
        idle = work.idle > 0.9
        clock = np.where(idle, c.CLOCK_IDLE_MHZ, clocks.average * c.CLOCK_NOMINAL_MHZ)
        clock = clock + np.where(idle, 0.0, 5.0 * normal[0])
        resident = np.clip(1.0 - work.stalled - work.idle - 0.7 * work.waiting, 0.0, 1.0)
        sm = hall.schedule.sm[part] * work.busy + c.SPIN_SM_ACTIVE * work.spin
        hot = s.throttle < 0.999
        bits = np.where(idle, IDLE, 0)
        bits = bits | np.where(clocks.capped & ~idle & (work.busy > 0.05), SW_POWER, 0)
        bits = bits | np.where(hot, SW_THERMAL, 0)
        bits = bits | np.where(s.core_c > c.HW_SLOWDOWN_C, HW_THERMAL | HW_SLOWDOWN, 0)
        bits = bits | np.where(now.effects.brake, POWER_BRAKE | HW_SLOWDOWN, 0)
        bits = bits | np.where(now.effects.app_clocks, APP_CLOCKS, 0)
        core = np.round(s.core_c + 0.3 * normal[1])
        used = np.where(
            idle & ~hall.schedule.inference[part], 620.0,
            hall.schedule.fb_used[part] * (1.0 + 0.004 * np.round(s.jitter)),
        )  # fmt: skip
        used = np.round(used)
        load = work.busy + work.spin
        power = np.maximum(now.power_w * (1.0 + 0.004 * normal[2]), 5.0)
        instant = np.where(rng.random(n) < work.busy, now.computing_w, now.power_w)
        pcie = 2.2e9 * work.busy + 4e8 * work.waiting * 10 + 4e6
        pcie = np.minimum(pcie, np.where(now.effects.pcie_down, 6.0e9, 1e12))
        tensor = now.tensor * (1.0 + 0.008 * normal[3])
        dram = now.dram * (1.0 + 0.01 * normal[4])
        downtrained = now.effects.pcie_down
        recoveries = k.link_recoveries.sum(axis=1)
        zero = np.zeros(n)
        return {
            "sm_clock_mhz": np.round(clock / c.CLOCK_STEP_MHZ) * c.CLOCK_STEP_MHZ,
            "mem_clock_mhz": np.full(n, c.MEM_CLOCK_MHZ),
            "clocks_event_reasons": bits.astype(float),
            "pstate": np.where(idle, 0.0, 0.0),
            "gpu_util_percent": np.round(np.clip(100.0 * resident, 0, 100)),
            "mem_copy_util_percent": np.round(np.clip(100.0 * now.dram * 0.9, 0, 100)),
            "enc_util_percent": zero,
            "dec_util_percent": zero,
            "gr_engine_active_ratio": _ratio(resident * 0.997 + 0.002 * normal[5] * (load > 0.05)),
            "sm_active_ratio": _ratio(sm * (1.0 + 0.006 * normal[6])),
            "sm_occupancy_ratio": _ratio(0.42 * sm * (1.0 + 0.01 * normal[7])),
            "tensor_active_ratio": _ratio(tensor),
            "dram_active_ratio": _ratio(dram),
            "pcie_tx_bytes_per_s": _rate(0.6 * pcie * (1.0 + 0.03 * normal[8])),
            "pcie_rx_bytes_per_s": _rate(pcie * (1.0 + 0.03 * normal[7])),
            "nvlink_tx_bytes_per_s": _rate(now.nvlink * (1.0 + 0.004 * normal[6])),
            "nvlink_rx_bytes_per_s": _rate(now.nvlink_rx * (1.0 + 0.004 * normal[5])),
            "fb_free_mib": c.FB_TOTAL_MIB - c.FB_RESERVED_MIB - used,
            "fb_used_mib": used,
            "fb_reserved_mib": np.full(n, c.FB_RESERVED_MIB),
            "power_w": np.round(power, 3),
            "power_instant_w": np.round(np.maximum(instant * (1.0 + 0.02 * normal[4]), 5.0), 3),
            "energy_mj": k.energy_mj,
            "power_limit_enforced_w": np.full(n, c.POWER_LIMIT_W),
            "power_violation_ns": k.power_violation_ns,
            "thermal_violation_ns": k.thermal_violation_ns,
            "sw_power_cap_ns": k.power_violation_ns,
            "sw_thermal_slowdown_ns": k.sw_thermal_ns,
            "hw_thermal_slowdown_ns": k.hw_thermal_ns,
            "hw_power_brake_ns": k.brake_ns,
            "gpu_temp_c": core,
            "memory_temp_c": np.round(s.hbm_c + 0.3 * normal[3]),
            "gpu_temp_margin_c": c.SLOWDOWN_C - core,
            "gpu_max_op_temp_c": np.full(n, c.SLOWDOWN_C),
            "memory_max_op_temp_c": np.full(n, c.HBM_CAUTION_C),
            "nvlink_tx_bytes": k.nvlink_tx,
            "nvlink_rx_bytes": k.nvlink_rx,
            "nvlink_rx_errors": zero,
            "nvlink_tx_discards": zero,
            "nvlink_recovery_successful": recoveries,
            "nvlink_recovery_failed": zero,
            "nvlink_recovery_events": recoveries,
            "nvlink_symbol_errors": k.link_symbols.sum(axis=1),
            "nvlink_symbol_ber": zero,  # the exporter prints six digits behind the point
            "nvlink_effective_ber": zero,
            "nvlink_effective_errors": zero,
            "fabric_manager_status": np.full(n, 3.0),
            "fabric_health": np.where(now.effects.flap > 0, 3.0, 1.0),
            "ecc_sbe_volatile": k.ecc_sbe,
            "ecc_dbe_volatile": zero,
            "ecc_sbe_aggregate": k.ecc_sbe + k.ecc_sbe_before,
            "ecc_dbe_aggregate": zero,
            "row_remap_uncorrectable": zero,
            "row_remap_correctable": k.row_remaps,
            "row_remap_failed": zero,
            "row_remap_pending": zero,
            "xid_last": k.xid_last,
            "pcie_replays": k.pcie_replays,
            "pcie_link_gen": np.where(downtrained, 3.0, 6.0),
            "pcie_link_width": np.where(downtrained, 8.0, 16.0),
        }

    def _link(self, rng: np.random.Generator) -> Columns:
        now, k, births = self.hall.now, self._counters, self.hall.births
        wobble = 1.0 + 0.003 * rng.standard_normal((self.hall.fleet.gpus, 1))
        return {
            "tx_bytes_per_s": _rate(births.link_share * (now.nvlink[:, None] * wobble)),
            "rx_bytes_per_s": _rate(births.link_share * (now.nvlink_rx[:, None] * wobble)),
            "tx_wait_ticks": k.link_wait,
            "recovery_successful": k.link_recoveries,
            "link_downs": k.link_downs,
            "plr_rx_errors": k.link_retries,
            "plr_tx_retries": np.floor(k.link_retries * 0.5),
        }

    def _switch_link(self) -> Columns:
        k, births = self._counters, self.hall.births
        bad = self.hall.now.effects.flap[:, None] * (
            np.arange(c.NVLINKS)[None, :] == (np.arange(self.hall.fleet.gpus) % c.NVLINKS)[:, None]
        )
        # What a GPU sends on a link is what the switch receives there.
        return {
            "rx_bytes": _bursts(births.link_share * k.nvlink_tx[:, None]),
            "tx_bytes": _bursts(births.link_share * k.nvlink_rx[:, None]),
            "symbol_errors": k.link_symbols,
            "link_downs": k.link_downs,
            "recovery_events": k.link_recoveries,
            "effective_ber": np.where(bad > 0, 1e-11, 1.5e-254),
            "symbol_ber": np.where(bad > 0, 1e-8, 1.5e-254),
        }

    def _cpu(self, rng: np.random.Generator) -> Columns:
        now, n = self.hall.now, self.hall.fleet.cpus
        return {
            "power_w": np.round(now.cpu_power_w * (1.0 + 0.01 * rng.standard_normal(n)), 3),
            "power_limit_w": np.full(n, 300.0),
            "temp_c": np.round(self.hall.state.cpu_temp_c + 0.3 * rng.standard_normal(n), 1),
            "util_ratio": np.round(now.cpu_util, 4),
            "util_percent": np.round(now.cpu_util, 4) * 100.0,
        }

    def _port(self) -> Columns:
        k, f = self._counters, self.hall.fleet
        effects = self.hall.now.effects
        up = np.concatenate([np.ones(2 * f.gpus), np.tile(~effects.up_dead, 2)]) > 0
        return {
            "xmit_data_bytes": k.bytes,
            "rcv_data_bytes": far_end(f.gpus, f.fabric_links, k.bytes),
            "xmit_packets": k.packets,
            "rcv_packets": far_end(f.gpus, f.fabric_links, k.packets),
            "xmit_wait_ticks": k.wait,
            "xmit_discards": np.minimum(k.discards, 65535.0),
            "symbol_errors": np.minimum(far_end(f.gpus, f.fabric_links, k.symbols), 65535.0),
            "link_error_recoveries": np.minimum(
                far_end(f.gpus, f.fabric_links, k.recoveries), 255.0
            ),
            "rcv_errors": np.minimum(far_end(f.gpus, f.fabric_links, k.rcv_errors), 65535.0),
            "link_downs": np.minimum(
                np.concatenate([np.tile(k.host_cable_downs, 2), np.tile(k.fabric_cable_downs, 2)]),
                255.0,
            ),
            "rate_gbps": np.where(up, c.LINE_GBPS, np.nan),
        }

    def _ufm(self) -> Columns:
        """FEC blocks by how many symbols were corrected, and what is sent and lost to waiting."""
        hall, k, f = self.hall, self._counters, self.hall.fleet
        flows = hall.now.flows
        wait = np.concatenate([flows.out_wait, flows.into_wait, flows.up_wait, flows.back_wait])
        load = np.concatenate([flows.out, flows.into, flows.up, flows.back])
        blocks = (hall.at - hall.epoch + c.FEC_HISTORY_S) * c.FEC_BLOCKS_PER_S
        quality = np.sqrt(hall.births.symbols_per_s / c.SYMBOLS_PER_S)
        one = blocks * c.FEC_CORRECTED_SHARE * quality + c.FEC_CORRECTED_PER_SYMBOL * k.symbols
        corrected = [np.floor(far_end(f.gpus, f.fabric_links, one * more)) for more in c.FEC_MORE]
        found = {f"fec_hist_{number}": values for number, values in enumerate(corrected, 1)}
        return {
            "fec_hist_0": np.floor(blocks) - np.sum(corrected, axis=0),
            **found,
            "congested_gbps": np.round(wait * c.LINE_GBPS, 3),
            "congested_percent": np.round(wait * 100.0, 4),
            "sent_percent": np.round(load * 100.0, 4),
        }

    def _port_seen(self, off: Bools) -> Bools:
        f = self.hall.fleet
        seen = np.ones(2 * f.gpus + 2 * f.fabric_links, dtype=bool)
        seen[: f.gpus] = ~off[f.gpu_rack]
        return seen

    def _rack(self, rng: np.random.Generator) -> Columns:
        now, n = self.hall.now, self.hall.fleet.racks
        return {
            "power_w": np.round(now.rack_power_w * (1.0 + 0.003 * rng.standard_normal(n)), 1),
            "energy_j": self._counters.rack_energy_j,
            "temp_c": np.round(27.0 + 0.4 * rng.standard_normal(n), 1),
        }

    def _connector(self, rng: np.random.Generator) -> Columns:
        loops, n = self.hall.loops, self.hall.fleet.racks
        normal = rng.standard_normal((5, n))
        meter = self.hall.now.effects.meter
        flow = loops.flow_lpm * meter * (1.0 + 0.004 * normal[0])
        supply = loops.rack_supply_c + 0.08 * normal[1]
        back = loops.rack_return_c + 0.08 * normal[2]
        return _loop_columns(
            supply, back, flow, loops.dp_kpa * (1.0 + 0.006 * normal[3]), loops.valve
        )

    def _cdu(self, rng: np.random.Generator) -> Columns:
        hall, loops, f = self.hall, self.hall.loops, self.hall.fleet
        n = f.cdus
        normal = rng.standard_normal((8, n))
        flow = np.bincount(f.rack_cdu, weights=loops.flow_lpm, minlength=n)
        secondary = _loop_columns(
            loops.supply_c + 0.05 * normal[0], loops.return_c + 0.05 * normal[1],
            flow * (1.0 + 0.003 * normal[2]), loops.loop_dp_kpa * (1.0 + 0.004 * normal[3]), None,
        )  # fmt: skip
        heat = np.bincount(f.rack_cdu, weights=loops.liquid_w, minlength=n) / 1e3
        approach = loops.supply_c - 6.0
        primary_flow = np.clip(heat / (0.0697 * np.maximum(approach + 4 - 14.1, 4.0)), 30, 4000)
        primary = _loop_columns(
            c.PRIMARY_SUPPLY_C + 0.06 * normal[4],
            c.PRIMARY_SUPPLY_C + heat / (0.0697 * primary_flow) + 0.06 * normal[5],
            primary_flow * (1.0 + 0.004 * normal[6]), 110.0 + 1.5 * normal[7],
            np.clip(primary_flow / 2000.0, 0.05, 1.0),
        )  # fmt: skip
        found = {f"secondary_{name}": value for name, value in secondary.items()}
        found.update({f"primary_{name}": value for name, value in primary.items()})
        racks = np.bincount(f.rack_cdu, minlength=n)
        level = loops.level_percent + 0.1 * rng.standard_normal(n)
        found["level_percent"] = np.round(level, 1)
        loss = 5.8 * hall.now.effects.filter * (flow / (racks * c.FLOW_RATED_LPM)) ** 2
        found["filter_pressure_kpa"] = np.round(loss + 0.05 * rng.standard_normal(n), 2)
        found["supply_temp_setpoint_c"] = np.round(c.SUPPLY_SET_C + hall.now.effects.setpoint_k, 1)
        found["power_w"] = np.round(2400.0 * loops.speed**3 * racks / 4 + 300.0, 0)
        return found

    def _pump(self, rng: np.random.Generator) -> Columns:
        """Two pumps per CDU share the head; the first is the one that tires."""
        loops, n = self.hall.loops, self.hall.fleet.cdus
        worn = 1.0 - self.hall.now.effects.head
        asked: Floats = np.repeat(100.0 * loops.speed, 2)
        real = asked + 0.25 * rng.standard_normal(2 * n)
        real[::2] -= asked[::2] * 0.35 * worn
        shown: Floats = np.minimum(np.maximum(real, 0.0), 100.0)
        return {
            "pump_speed_percent": shown.round(1),
            "pump_setpoint_percent": np.round(asked, 1),
            "service_hours": np.floor(self._counters.pump_hours),
        }

    def _leak(self, rng: np.random.Generator) -> Columns:
        f = self.hall.fleet
        count = f.racks * c.TRAYS * c.LEAK_DETECTORS_PER_TRAY
        volts = 1.72 + 0.01 * rng.standard_normal(count)
        wet = np.flatnonzero(self.hall.now.effects.leak_lpm)
        for rack in wet:
            volts[rack * c.TRAYS * c.LEAK_DETECTORS_PER_TRAY + 7] = 1.05
        return {"voltage_v": np.round(volts, 3)}

    def _switch(self, rng: np.random.Generator) -> Columns:
        f = self.hall.fleet
        n = f.leaves + f.spines
        return {
            "temp_c": np.round(52.0 + 1.0 * rng.standard_normal(n)),
        }

    def _impair(self, o: Observation, rng: np.random.Generator) -> None:
        """Gaps and repeats that the harmless events make; in place."""
        for event in self.hall.faults:
            if not event.benign or event.entity_kind != "host":
                continue
            level, host = event.level(o.at), event.index
            gpus = slice(host * c.GPUS_PER_TRAY, (host + 1) * c.GPUS_PER_TRAY)
            if event.cause == "exporter_restart" and 0.0 <= o.at - event.end < c.PROFILING_LATE_S:
                for name in _PROFILED:
                    o.gpu[name] = o.gpu[name].copy()
                    o.gpu[name][gpus] = np.nan
            if level <= 0.0:
                self._frozen.pop(host, None)
                continue
            if (event.cause == "missing_scrapes" and rng.random() < level) or event.cause in (
                "driver_upgrade",
                "exporter_restart",
            ):
                o.host_seen[host] = False
            elif event.cause == "blank_readings":
                for name in ("tensor_active_ratio", "memory_temp_c", "power_w"):
                    o.gpu[name] = o.gpu[name].copy()
                    lost = rng.random(c.GPUS_PER_TRAY) < level
                    o.gpu[name][gpus] = np.where(lost, np.nan, o.gpu[name][gpus])
            elif event.cause == "frozen_page":
                held = self._frozen.setdefault(
                    host, {name: values[gpus].copy() for name, values in o.gpu.items()}
                )
                for name, values in held.items():
                    o.gpu[name] = o.gpu[name].copy()
                    o.gpu[name][gpus] = values
        o.gpu_seen &= np.repeat(o.host_seen, c.GPUS_PER_TRAY)


def far_end(hosts: int, links: int, values: Floats) -> Floats:
    """Reorder what is kept per direction (out, into, up, back) to the receiving port's place:
    the HCA receives "into", the leaf's port down "out", its port up "back", the spine "up"."""
    n = hosts
    return np.concatenate(
        [values[n : 2 * n], values[:n], values[2 * n + links :], values[2 * n : 2 * n + links]]
    )


def _ratio(values: Floats) -> Floats:
    clipped: Floats = np.minimum(np.maximum(values, 0.0), 1.0)
    return clipped.round(6)


def _rate(values: Floats) -> Floats:
    stepped: Floats = np.floor(values / c.RATE_STEP) * c.RATE_STEP
    return stepped


def _bursts(values: Floats) -> Floats:
    whole: Floats = np.floor(values / c.BURST_BYTES) * c.BURST_BYTES
    return whole


def _loop_columns(
    supply: Floats, back: Floats, flow: Floats, dp: Floats, valve: Floats | None
) -> Columns:
    supply, back, flow = np.round(supply, 2), np.round(back, 2), np.round(flow, 2)
    dp = np.round(dp, 1)
    found = {
        "supply_temp_c": supply,
        "return_temp_c": back,
        "delta_temp_k": np.round(back - supply, 2),
        "flow_lpm": flow,
        "supply_pressure_kpa": np.round(c.STATIC_KPA + dp, 1),
        "return_pressure_kpa": np.full(dp.shape, c.STATIC_KPA),
        "delta_pressure_kpa": dp,
        "heat_removed_kw": np.round(flow * c.KW_PER_LPM_K * (back - supply), 3),
    }
    if valve is not None:
        found["valve_position_percent"] = np.round(100.0 * valve, 1)
    return found
