"""The hall itself: its state, and the step that moves it on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import coolant, noise, silicon
from pipeline.hall.births import draw_births
from pipeline.hall.counters import Counters, fresh_counters, gpu_fields
from pipeline.hall.effects import Effects
from pipeline.hall.fabric import Fabric, Flows
from pipeline.hall.faults import Fault, module_of
from pipeline.hall.fleet import Fleet, Floats
from pipeline.hall.jobs import Schedule
from pipeline.hall.work import Work, do_work

_STEP = 105
_EVENTS = 106


@dataclass
class State:
    """What the next step depends on, beside loops and counters."""

    clock: Floats
    throttle: Floats
    core_c: Floats
    hbm_c: Floats
    sequence: Floats
    jitter: Floats
    demand_noise: Floats
    weight_noise: Floats
    net: Floats
    pod_on: Floats
    pod_level: Floats
    cpu_noise: Floats
    cpu_temp_c: Floats
    supply_noise: Floats
    driver: Floats  # per tray: 0 for the first driver version, 1 after an upgrade


@dataclass
class Now:
    """What the last step did; measured values are made from it."""

    work: Work
    clocks: silicon.Clocks
    power_w: Floats
    computing_w: Floats
    cpu_util: Floats
    cpu_power_w: Floats
    nvlink: Floats
    nvlink_rx: Floats
    flows: Flows
    rack_power_w: Floats
    tensor: Floats
    dram: Floats
    effects: Effects


class Hall:
    """A hall at one time. ``advance`` moves it; everything random follows from the seed.

    Args:
        fleet: layout; see :func:`pipeline.hall.fleet.build_fleet`.
        epoch: time of the first state, seconds since 1970.
        faults: faults and harmless events; more can be added while it runs.
    """

    def __init__(self, fleet: Fleet, epoch: float, faults: Iterable[Fault] = ()) -> None:
        self.fleet = fleet
        self.epoch = epoch
        self.at = epoch
        self.step = 0
        self.faults = list(faults)
        self.births = draw_births(fleet)
        self.schedule = Schedule(fleet, epoch)
        self.fabric = Fabric(fleet, self.schedule, self.births)
        self.loops = coolant.fresh_loops(fleet)
        self.counters: Counters = fresh_counters(fleet)
        self.state = self._fresh_state()
        self.now: Now
        self.settle()

    def _fresh_state(self) -> State:
        f, jobs = self.fleet, len(self.schedule.partitions)
        rng = noise.generator(f.seed, _STEP, 0)
        return State(
            clock=np.ones(f.gpus),
            throttle=np.ones(f.gpus),
            core_c=np.full(f.gpus, 52.0),
            hbm_c=np.full(f.gpus, 56.0),
            sequence=rng.standard_normal(jobs),
            jitter=rng.standard_normal(f.gpus),
            demand_noise=rng.standard_normal(f.gpus),
            weight_noise=rng.standard_normal(f.fabric_links),
            net=np.ones(jobs),
            pod_on=(rng.random(f.trays) < 0.4).astype(float),
            pod_level=rng.random(f.trays),
            cpu_noise=rng.standard_normal(f.cpus),
            cpu_temp_c=np.full(f.cpus, 46.0),
            supply_noise=rng.standard_normal(f.cdus),
            driver=np.zeros(f.trays),
        )

    def settle(self) -> None:
        """Let temperatures and flows find their values without time passing for counters."""
        for _ in range(30):
            self._physics(self.at - 10.0, self.at, 10.0)

    def settle_now(self) -> None:
        """Make the readings of a restored hall; its state stays as it is."""
        kept = self.save()
        self._physics(self.at - 10.0, self.at, 10.0)
        now = self.now
        self.restore(kept)
        self.now = now

    def advance(self, dt_s: float) -> None:
        """Let ``dt_s`` seconds pass."""
        begin = self.at
        self.step += 1
        self.at = begin + dt_s
        self.schedule.move_to(self.at)
        self._noise(dt_s)
        self._physics(begin, self.at, dt_s)
        self._count(begin, dt_s)

    # --- parts of a step ---
    def _noise(self, dt_s: float) -> None:
        rng = noise.generator(self.fleet.seed, _STEP, self.step)
        s = self.state

        def red(old: Floats, tau_s: float) -> Floats:
            return noise.red_noise(old, rng.standard_normal(old.shape), dt_s, tau_s)

        s.sequence = red(s.sequence, 45.0)
        s.jitter = red(s.jitter, 25.0)
        s.demand_noise = red(s.demand_noise, 20.0)
        s.weight_noise = red(s.weight_noise, 90.0)
        s.cpu_noise = red(s.cpu_noise, 60.0)
        s.supply_noise = red(s.supply_noise, 400.0)
        chance = rng.random(s.pod_on.shape)
        leave = 1.0 - np.exp(-dt_s / 70.0)
        enter = 1.0 - np.exp(-dt_s / 150.0)
        s.pod_on = np.where(s.pod_on > 0, chance >= leave, chance < enter).astype(float)
        s.pod_level = np.clip(s.pod_level + 0.3 * (rng.random(s.pod_level.shape) - 0.5), 0.2, 1.0)

    def _physics(self, begin: float, end: float, dt_s: float) -> None:
        f, s, births, schedule = self.fleet, self.state, self.births, self.schedule
        part = schedule.gpu_partition
        effects = Effects(f, len(schedule.partitions))
        effects.add(self.faults, end)
        pods = s.pod_on * (0.35 + 0.6 * s.pod_level)
        work = do_work(schedule, effects, s.clock, s.sequence, s.jitter, s.net, pods, begin, end)
        dram = schedule.dram[part] * work.busy + 0.04 * work.spin
        tensor = schedule.tensor[part] * work.busy
        # Silicon, in steps short against its time constants.
        dynamic = schedule.dynamic_w[part]
        loops, rack = self.loops, f.gpu_rack
        parts = max(1, round(dt_s / 10.0))
        rise = (loops.rack_return_c - loops.rack_supply_c)[rack]
        local = loops.rack_supply_c[rack] + np.array(c.PREHEAT)[f.gpu_slot] * rise
        ratio = (loops.flow_lpm / c.FLOW_RATED_LPM)[rack]
        power = np.zeros(f.gpus)
        for _ in range(parts):
            clocks = silicon.set_clocks(births, effects, dynamic, s.core_c, s.throttle)
            drawn, computing = silicon.draw_power(births, work, clocks, dynamic, s.core_c)
            drawn = np.where(effects.off[rack], 0.0, drawn)
            s.core_c, s.hbm_c, _ = silicon.warm_up(
                births, effects, drawn, local, ratio, s.core_c, s.hbm_c, dram, dt_s / parts
            )
            s.throttle = silicon.throttle_next(s.throttle, s.core_c, dt_s / parts)
            power += drawn / parts
        s.clock = clocks.compute
        # Hosts.
        awake = 1.0 - work.idle
        hosted = awake.reshape(-1, 2).mean(axis=1)
        cpu_util = np.clip(
            0.03 + schedule.cpu_util[part[::2]] * hosted * (1.0 + 0.15 * s.cpu_noise)
            + effects.host_busy, 0.01, 1.0,
        )  # fmt: skip
        cpu_power = c.CPU_IDLE_W + c.CPU_SPAN_W * cpu_util
        # Network: what would be sent if it were not slow; how slow it is comes out of it.
        demand = (schedule.ib_share * work.pace * s.net * np.where(schedule.train, 1.0, 0.6))[
            part
        ] * np.exp(0.05 * s.demand_noise - 0.00125)
        demand = np.where(work.idle > 0.999, 0.0, demand + 0.0015)
        rng = noise.generator(f.seed, _EVENTS, self.step)
        flows = self.fabric.carry(
            effects, demand, s.weight_noise, rng.standard_normal(2 * f.gpus + 2 * f.fabric_links)
        )
        s.net = flows.net
        nvlink = (
            schedule.nvlink[part]
            * np.where(schedule.inference[part], work.busy, work.pace[part])
            * (1.0 + 0.012 * s.demand_noise)
        )
        nvlink = np.where(work.idle > 0.999, 2e5, nvlink)
        # Every byte that a GPU sends is received in its tray's neighbourhood.
        nvlink_rx = np.roll(nvlink.reshape(-1, c.GPUS_PER_TRAY), 1, axis=1).reshape(-1)
        # Racks.
        by_rack = (f.racks, c.GPUS_PER_RACK)
        switch_load = nvlink.reshape(by_rack).mean(axis=1) / (c.NVLINKS * c.NVLINK_BYTES_PER_S)
        other = c.SWITCH_TRAYS * (c.SWITCH_TRAY_W + c.SWITCH_TRAY_SPAN_W * switch_load)
        other = other + c.GPUS_PER_RACK * c.NIC_W + c.TRAYS * c.TRAY_OTHER_W
        cpus = cpu_power.reshape(f.racks, -1).sum(axis=1)
        rack_power = (power.reshape(by_rack).sum(axis=1) + cpus + other) / c.PSU_EFFICIENCY
        rack_power = np.where(effects.off, 1800.0, rack_power)
        coolant.flow_on(f, births, effects, loops, rack_power, s.supply_noise, dt_s)
        cpu_target = (
            loops.rack_supply_c[np.arange(f.cpus) // (f.cpus // f.racks)] + 0.075 * cpu_power
        )
        s.cpu_temp_c = cpu_target + (s.cpu_temp_c - cpu_target) * np.exp(-dt_s / 40.0)
        self.now = Now(
            work, clocks, power, computing, cpu_util, cpu_power, nvlink, nvlink_rx, flows,
            rack_power, tensor, dram, effects,
        )  # fmt: skip

    def _count(self, begin: float, dt_s: float) -> None:
        k, now, f = self.counters, self.now, self.fleet
        effects, work = now.effects, now.work
        rng = noise.generator(f.seed, _EVENTS, self.step, 1)
        ns = dt_s * 1e9
        self._restart_drivers(begin)
        k.energy_mj += np.floor(now.power_w * dt_s * 1e3)
        k.power_violation_ns += np.floor(now.clocks.capped * work.busy * ns)
        hot = np.clip(1.0 - self.state.throttle, 0.0, 1.0) > 1e-3
        k.thermal_violation_ns += np.floor(hot * (work.busy + work.spin) * ns)
        k.sw_thermal_ns += np.floor(hot * ns * np.clip(work.busy + work.spin, 0, 1))
        k.hw_thermal_ns += np.floor((self.state.core_c > c.HW_SLOWDOWN_C) * ns)
        k.brake_ns += np.floor(effects.brake * ns)
        k.nvlink_tx += np.floor(now.nvlink * (dt_s / c.BURST_BYTES)) * c.BURST_BYTES
        k.nvlink_rx += np.floor(now.nvlink_rx * (dt_s / c.BURST_BYTES)) * c.BURST_BYTES
        k.ecc_sbe += rng.poisson(2e-6 * dt_s + 300.0 * effects.memory * dt_s)
        k.pcie_replays += rng.poisson(1e-6 * dt_s + 0.4 * effects.pcie_down * dt_s)
        self._count_nvlinks(rng, dt_s)
        self._count_fabric(rng, dt_s)
        k.rack_energy_j += np.floor(now.rack_power_w * dt_s)
        k.pump_hours += dt_s / 3600.0

    def _count_nvlinks(self, rng: np.random.Generator, dt_s: float) -> None:
        k, f, effects = self.counters, self.fleet, self.now.effects
        flapping = np.flatnonzero(effects.flap)
        if flapping.size:
            link = flapping % c.NVLINKS
            level = effects.flap[flapping]
            k.link_recoveries[flapping, link] += rng.poisson(1.2 * level * dt_s)
            k.link_symbols[flapping, link] += rng.poisson(40.0 * level * dt_s)
            k.link_retries[flapping, link] += rng.poisson(900.0 * level * dt_s)
        for _ in range(int(rng.poisson(2e-7 * dt_s * f.gpus * c.NVLINKS))):
            k.link_recoveries[rng.integers(f.gpus), rng.integers(c.NVLINKS)] += 1
        few = rng.poisson(2e-4 * dt_s * f.gpus)
        k.link_retries[rng.integers(f.gpus, size=few), rng.integers(c.NVLINKS, size=few)] += 1
        load = self.now.nvlink / (c.NVLINKS * c.NVLINK_BYTES_PER_S)
        k.link_wait += np.floor(load * load * 0.004 * c.NVLINK_BYTES_PER_S / c.TICK_BYTES * dt_s)[
            :, None
        ]

    def _count_fabric(self, rng: np.random.Generator, dt_s: float) -> None:
        k, f, flows, effects = self.counters, self.fleet, self.now.flows, self.now.effects
        load = np.concatenate([flows.out, flows.into, flows.up, flows.back])
        wait = np.concatenate([flows.out_wait, flows.into_wait, flows.up_wait, flows.back_wait])
        sent = np.floor(load * (c.LINE_BYTES_PER_S * dt_s / c.BURST_BYTES)) * c.BURST_BYTES
        k.bytes += sent
        k.packets += sent / c.PACKET_BYTES
        gaps = wait * (c.LINE_BYTES_PER_S / c.TICK_BYTES / c.GAP_TICKS * dt_s)
        k.wait += np.floor(gaps) * c.GAP_TICKS
        n, links = f.gpus, f.fabric_links
        rate = self.births.symbols_per_s.copy()
        rate[2 * n : 2 * n + links] += effects.spine_symbols
        rate[2 * n + links :] += effects.leaf_symbols
        errors = rng.poisson(rate * dt_s)
        k.symbols += errors
        bad = rate > 0.5
        k.recoveries += rng.poisson(np.where(bad, rate / 400.0, 1e-8) * dt_s)
        k.rcv_errors += rng.poisson(np.where(bad, rate / 60.0, 1e-8) * dt_s)
        k.discards += rng.poisson(np.where(wait > 0.25, wait * 0.02, 0.0) * dt_s)
        for fault in self.faults:
            if fault.cause == "downed_uplink" and self.at - dt_s < fault.start <= self.at:
                for link in module_of(f, fault.index)[:2]:
                    k.fabric_cable_downs[link] += 1

    def _restart_drivers(self, begin: float) -> None:
        for event in self.faults:
            if event.cause == "driver_upgrade" and begin < event.end <= self.at:
                tray = event.index
                self.state.driver[tray] = 1.0
                gpus = slice(tray * c.GPUS_PER_TRAY, (tray + 1) * c.GPUS_PER_TRAY)
                for name in gpu_fields():
                    getattr(self.counters, name)[gpus] = 0.0

    # --- snapshot ---
    def save(self) -> dict[str, Floats]:
        """All state as arrays by name; faults and the seed are kept elsewhere."""
        found = {"at": np.array([self.at]), "step": np.array([float(self.step)])}
        for prefix, part in (("s", self.state), ("l", self.loops), ("k", self.counters)):
            for field in fields(part):
                found[f"{prefix}_{field.name}"] = getattr(part, field.name).copy()
        return found

    def restore(self, saved: dict[str, Floats]) -> None:
        """Go on from what :meth:`save` gave."""
        self.at = float(saved["at"][0])
        self.step = int(saved["step"][0])
        for prefix, part in (("s", self.state), ("l", self.loops), ("k", self.counters)):
            for field in fields(part):
                setattr(part, field.name, saved[f"{prefix}_{field.name}"].copy())
        self.schedule.move_to(self.at)
