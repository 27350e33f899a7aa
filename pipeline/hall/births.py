"""How each part was born: what makes healthy GPUs, racks and cables differ for good."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import noise
from pipeline.hall.fleet import Fleet, Floats, Ints

_BIRTH = 103


@dataclass(frozen=True)
class Births:
    """Per GPU: ``boost`` (highest clock, ratio of nominal), ``hunger`` (power at equal work),
    ``r_core`` and ``r_hbm`` (K/W). Per rack: ``liquid_share``, ``valve_lpm``, ``supply_k``
    (offset of its supply), ``manifold`` (share of differential pressure lost before it).
    Per fabric direction: ``wait`` (factor on queueing), ``symbols_per_s``.
    """

    boost: Floats
    hunger: Floats
    r_core: Floats
    r_hbm: Floats
    slow: Ints
    liquid_share: Floats
    valve_lpm: Floats
    supply_k: Floats
    manifold: Floats
    wait: Floats
    symbols_per_s: Floats
    link_share: Floats


def draw_births(fleet: Fleet) -> Births:
    """Births of a fleet, from its seed alone."""
    rng = noise.generator(fleet.seed, _BIRTH)
    n, racks = fleet.gpus, fleet.racks
    boost = 1.0 + np.clip(rng.normal(0.0, c.BIRTH_CLOCK_SIGMA, n), -0.04, 0.03)
    slow = np.flatnonzero(rng.random(n) < c.BORN_SLOW_SHARE)
    boost[slow] -= rng.uniform(0.06, 0.10, slow.size)
    directions = 2 * n + 2 * fleet.fabric_links
    share = rng.dirichlet(np.full(c.NVLINKS, 4000.0), n)
    return Births(
        boost=boost,
        hunger=_spread(rng, n, c.BIRTH_POWER_SIGMA, 0.1),
        r_core=c.R_CORE_K_PER_W * _spread(rng, n, c.BIRTH_THERMAL_SIGMA, 0.18),
        r_hbm=c.R_HBM_K_PER_W * _spread(rng, n, c.BIRTH_THERMAL_SIGMA, 0.18),
        slow=slow,
        liquid_share=c.LIQUID_SHARE * _spread(rng, racks, c.LIQUID_SHARE_SIGMA, 0.025),
        valve_lpm=c.VALVE_LPM * _spread(rng, racks, 0.025, 0.06),
        supply_k=rng.uniform(0.05, 0.45, racks),
        manifold=rng.uniform(0.03, 0.08, racks),
        wait=np.exp(rng.normal(0.0, 0.22, directions)),
        symbols_per_s=np.exp(rng.normal(np.log(c.SYMBOLS_PER_S), 1.3, directions)).clip(0.0, 0.02),
        link_share=share,
    )  # fmt: skip


def _spread(rng: np.random.Generator, count: int, sigma: float, limit: float) -> Floats:
    """Factors about 1, none further away than ``limit``."""
    return 1.0 + rng.normal(0.0, sigma, count).clip(-limit, limit)
