"""Noise that depends on the seed and the time alone, so that a restarted hall repeats it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """A generator for one purpose at one step; no state has to be kept between steps."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *purpose])))


def red_noise(state: Floats, fresh: Floats, dt_s: float, tau_s: float) -> Floats:
    """One step of first-order (Ornstein-Uhlenbeck) noise of unit variance.

    Args:
        state: noise before the step.
        fresh: standard normal numbers of the same shape.
        dt_s: length of the step, seconds.
        tau_s: correlation time, seconds.
    """
    keep = np.exp(-dt_s / tau_s)
    mixed: Floats = keep * state + np.sqrt(1.0 - keep * keep) * fresh
    return mixed
