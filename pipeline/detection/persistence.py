"""From windows to incidents: k of n to open, a lower bar and a clean run to close."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.detection.spec import Decision

NONE, HOLD, WEAK, STRONG = 0, 1, 2, 3
Levels = NDArray[np.int8]


@dataclass(frozen=True)
class Verdicts:
    """What the last windows of every entity amount to.

    Attributes:
        raises: persistent enough to open an incident; entities.
        holds: enough to keep an open incident open; entities.
        first: index of the first window of the present run of evidence; -1 without one.
        minutes: windows with evidence; entities.
    """

    raises: NDArray[np.bool_]
    holds: NDArray[np.bool_]
    first: NDArray[np.int64]
    minutes: NDArray[np.int64]


def judge(short: Levels, long: Levels, decision: Decision) -> Verdicts:
    """Apply k-of-n to the evidence.

    Args:
        short: evidence of each one-minute window, windows x entities, oldest first.
        long: the same of the long window that ends there.
    """
    level = np.maximum(short, long)
    strong = (short[-decision.strong.n :] >= STRONG).sum(axis=0) >= decision.strong.k
    weak = (long[-decision.weak.n :] >= WEAK).sum(axis=0) >= decision.weak.k
    # What raises must still be there: an outlier that is over by now opens nothing.
    present = level[-2:].max(axis=0) >= HOLD
    raises: NDArray[np.bool_] = (strong | weak) & present
    # The lower bar is for what was over the higher one before.
    recent = np.any(level[-decision.clear_minutes :] >= HOLD, axis=0) & np.any(
        level >= WEAK, axis=0
    )
    seen = level >= HOLD
    first = np.where(np.any(seen, axis=0), seen.argmax(axis=0), -1)
    return Verdicts(raises, np.asarray(recent), first.astype(np.int64), seen.sum(axis=0))
