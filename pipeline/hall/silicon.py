"""GPU power, clock, temperature and throttle.

power  = static(T) + dynamic * hunger * activity * clock^2, never above 1,400 W while computing
clock  = min(boost, what the power limit allows, caps, throttle)
T_core -> T_coolant + R(flow) * power, first order with 18 s; likewise HBM with 35 s
R      = R_birth * (0.62 + 0.38 * (flow / rated)^-0.8) * cold plate
throttle falls by 0.22 %/s per kelvin above 87 °C, holds down to 84 °C, then recovers
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall.births import Births
from pipeline.hall.effects import Effects
from pipeline.hall.fleet import Bools, Floats
from pipeline.hall.work import Work


@dataclass
class Clocks:
    """Clock while computing and averaged (ratios of nominal), and who holds it down.

    ``capped`` is the power limit, ``hot`` the throttle: booleans per GPU.
    """

    compute: Floats
    average: Floats
    capped: Bools
    hot: Bools


def static_power(core_c: Floats) -> Floats:
    """Power of a GPU that does nothing, W."""
    return c.POWER_STATIC_W + c.LEAKAGE_W_PER_K * (core_c - 40.0)


def set_clocks(
    births: Births, effects: Effects, dynamic_w: Floats, core_c: Floats, throttle: Floats
) -> Clocks:
    """Clock that each GPU runs at.

    Args:
        dynamic_w: power of the GPU's job at full activity and nominal clock, W.
        throttle: share of the boost clock that heat leaves, 0.35 to 1.
    """
    limit = np.sqrt((c.POWER_LIMIT_W - static_power(core_c)) / (dynamic_w * births.hunger))
    hot_limit = births.boost * throttle
    free = np.minimum(np.minimum(births.boost, effects.clock_cap), hot_limit)
    clock = np.minimum(free, limit)
    return Clocks(clock, clock.copy(), limit < free, throttle < 0.999)


def draw_power(
    births: Births, work: Work, clocks: Clocks, dynamic_w: Floats, core_c: Floats
) -> tuple[Floats, Floats]:
    """Mean power and power while computing, W."""
    static = static_power(core_c)
    dynamic = dynamic_w * births.hunger * clocks.compute**2
    computing = np.minimum(static + dynamic, c.POWER_LIMIT_W)
    active = work.busy * (computing - static)
    lesser = dynamic * (c.POWER_SPIN * work.spin + c.POWER_STALL * (work.stalled + work.waiting))
    return static + active + lesser, computing


def warm_up(
    births: Births,
    effects: Effects,
    power_w: Floats,
    local_c: Floats,
    flow_ratio: Floats,
    core_c: Floats,
    hbm_c: Floats,
    dram: Floats,
    dt_s: float,
) -> tuple[Floats, Floats, Floats]:
    """Core and HBM temperatures after ``dt_s``, °C, and heat handed to the cold plates, W.

    Args:
        local_c: coolant temperature at each GPU, °C.
        flow_ratio: flow at each GPU against rated flow.
        dram: DRAM activity, 0 to 1.
    """
    convective = np.maximum(flow_ratio, 0.08) ** -0.8
    path = (1.0 - c.CONVECTIVE_SHARE + c.CONVECTIVE_SHARE * convective) * effects.plate
    core_target = local_c + births.r_core * path * power_w
    hbm_target = local_c + births.r_hbm * path * power_w * (0.86 + 0.28 * dram)
    core = core_target + (core_c - core_target) * np.exp(-dt_s / c.TAU_CORE_S)
    hbm = hbm_target + (hbm_c - hbm_target) * np.exp(-dt_s / c.TAU_HBM_S)
    mean_core = core_target + (core_c - core_target) * (c.TAU_CORE_S / dt_s) * (
        1.0 - np.exp(-dt_s / c.TAU_CORE_S)
    )
    heat = (mean_core - local_c) / (births.r_core * path)
    return core, hbm, heat


def throttle_next(throttle: Floats, core_c: Floats, dt_s: float) -> Floats:
    """Throttle after ``dt_s``: falls when hot, holds in between, recovers when cool."""
    over = core_c - c.SLOWDOWN_C
    fall = 1.0 - np.minimum(c.THROTTLE_RATE * np.maximum(over, 0.0) * dt_s, 0.25)
    rise = np.where(core_c < c.THROTTLE_RELEASE_C, 0.0035 * dt_s, 0.0)
    return np.clip(throttle * fall + rise, c.THROTTLE_FLOOR, 1.0)
