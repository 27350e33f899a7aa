"""Racks and loops: power, flow, pressure, valves, pumps, supply and return temperatures.

rack flow  = valve_lpm * valve * area * sqrt(dp / 90 kPa)
dp         = head * speed^2 * condition - loss * filter * (loop flow / rated)^2
valve      -> 1.5 L/min per kW of liquid heat, first order with 35 s
pump speed -> what holds 90 kPa, first order with 15 s, 100 % at most
return     -> supply + heat / (flow * 0.0682 kW/(L/min K))
heat       -> liquid share * rack power, first order with 30 s
air        -> the rest, first order with 60 s
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall.births import Births
from pipeline.hall.effects import Effects
from pipeline.hall.fleet import Fleet, Floats


@dataclass
class Loops:
    """State of racks (R) and CDUs (C).

    ``valve`` 0 to 1, ``flow_lpm``, ``dp_kpa`` and temperatures per rack; ``speed`` 0 to 1,
    ``loop_dp_kpa``, ``supply_c``, ``return_c``, ``level_percent`` per CDU.
    """

    valve: Floats
    flow_lpm: Floats
    dp_kpa: Floats
    rack_supply_c: Floats
    rack_return_c: Floats
    liquid_w: Floats
    air_w: Floats
    speed: Floats
    loop_dp_kpa: Floats
    supply_c: Floats
    return_c: Floats
    level_percent: Floats


def fresh_loops(fleet: Fleet) -> Loops:
    """Loops of a hall that was just switched on."""
    racks, cdus = fleet.racks, fleet.cdus
    return Loops(
        valve=np.full(racks, 0.6),
        flow_lpm=np.full(racks, 0.6 * c.VALVE_LPM),
        dp_kpa=np.full(racks, c.DP_SET_KPA),
        rack_supply_c=np.full(racks, c.SUPPLY_SET_C),
        rack_return_c=np.full(racks, c.SUPPLY_SET_C + 8.0),
        liquid_w=np.full(racks, 60e3),
        air_w=np.full(racks, 10e3),
        speed=np.full(cdus, 0.7),
        loop_dp_kpa=np.full(cdus, c.DP_SET_KPA),
        supply_c=np.full(cdus, c.SUPPLY_SET_C),
        return_c=np.full(cdus, c.SUPPLY_SET_C + 8.0),
        level_percent=np.full(cdus, 88.0),
    )


def flow_on(
    fleet: Fleet,
    births: Births,
    effects: Effects,
    loops: Loops,
    rack_power_w: Floats,
    supply_noise: Floats,
    dt_s: float,
) -> None:
    """Move the loops on by ``dt_s``, in place.

    Args:
        rack_power_w: electrical power of each rack, W.
        supply_noise: of each loop, unit variance.
    """
    cdu, racks_of = fleet.rack_cdu, np.bincount(fleet.rack_cdu, minlength=fleet.cdus)
    # Valves follow the heat.
    wanted = np.clip(c.LPM_PER_KW * loops.liquid_w / 1e3, c.FLOW_MIN_LPM, c.FLOW_MAX_LPM)
    wanted = np.where(effects.off, c.FLOW_MIN_LPM, wanted)
    # The controller knows its valve's own curve, not what blocks the pipe; it trims on the flow
    # that it measures.
    per_opening = (
        births.valve_lpm * effects.area * np.sqrt(np.maximum(loops.dp_kpa, 1.0) / c.DP_SET_KPA)
    )
    target = np.clip(wanted / np.maximum(per_opening * effects.meter, 1.0), 0.05, 1.0)
    target = np.minimum(target, effects.valve_cap)
    loops.valve = target + (loops.valve - target) * np.exp(-dt_s / c.TAU_VALVE_S)
    # Pressure and flow of each loop settle at once; pumps follow.
    conductance = births.valve_lpm * loops.valve * effects.area * np.sqrt(1.0 - births.manifold)
    total = np.bincount(cdu, weights=conductance, minlength=fleet.cdus)
    rated = racks_of * c.FLOW_RATED_LPM
    loss = c.LOOP_LOSS_KPA * effects.filter * (total / rated) ** 2 / c.DP_SET_KPA
    full = c.PUMP_HEAD_KPA * effects.head
    needed = np.sqrt(c.DP_SET_KPA * (1.0 + loss) / np.maximum(full, 1.0))
    speed_target = np.clip(needed, 0.2, 1.0)
    loops.speed = speed_target + (loops.speed - speed_target) * np.exp(-dt_s / c.TAU_PUMP_S)
    loops.loop_dp_kpa = full * loops.speed**2 / (1.0 + loss)
    loops.dp_kpa = loops.loop_dp_kpa[cdu] * (1.0 - births.manifold)
    loops.flow_lpm = (
        births.valve_lpm * loops.valve * effects.area * np.sqrt(loops.dp_kpa / c.DP_SET_KPA)
    )
    # Heat reaches the coolant late.
    share = births.liquid_share
    loops.liquid_w = share * rack_power_w + (loops.liquid_w - share * rack_power_w) * np.exp(
        -dt_s / c.TAU_LIQUID_S
    )
    rest = (1.0 - share) * rack_power_w
    loops.air_w = rest + (loops.air_w - rest) * np.exp(-dt_s / c.TAU_AIR_S)
    # Supply: the heat exchanger holds its set-point, a little worse at high load.
    heat = np.bincount(cdu, weights=loops.liquid_w, minlength=fleet.cdus)
    load = heat / (racks_of * 95e3)
    supply_target = c.SUPPLY_SET_C + effects.setpoint_k + 0.5 * (load - 0.8) + 0.12 * supply_noise
    loops.supply_c = supply_target + (loops.supply_c - supply_target) * np.exp(-dt_s / 60.0)
    loops.rack_supply_c = loops.supply_c[cdu] + births.supply_k + effects.bypass_k
    rise = loops.liquid_w / 1e3 / (c.KW_PER_LPM_K * np.maximum(loops.flow_lpm, 1.0))
    tau = c.TAU_RETURN_S * c.FLOW_RATED_LPM / np.maximum(loops.flow_lpm, 10.0)
    return_target = loops.rack_supply_c + rise
    loops.rack_return_c = return_target + (loops.rack_return_c - return_target) * np.exp(
        -dt_s / tau
    )
    flow = np.bincount(cdu, weights=loops.flow_lpm, minlength=fleet.cdus)
    warm = np.bincount(cdu, weights=loops.flow_lpm * loops.rack_return_c, minlength=fleet.cdus)
    loops.return_c = warm / np.maximum(flow, 1.0)
    leak = np.bincount(cdu, weights=effects.leak_lpm, minlength=fleet.cdus)
    loops.level_percent = np.maximum(loops.level_percent - leak * dt_s / 60.0 / 4.0, 5.0)
