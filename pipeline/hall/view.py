"""Readings between two steps: counters go on evenly, so a scrape sees no jump of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hall.fleet import Floats, Ints
from pipeline.hall.observe import Columns, Observation


@dataclass(frozen=True)
class View:
    """The hall at a time between two observations.

    Gauges are those of the later one. Counters lie in between, in whole numbers; at the later
    one's own time they are exactly its.
    """

    before: Observation
    after: Observation
    share: float

    @classmethod
    def at(cls, before: Observation, after: Observation, at: float) -> View:
        """The view at a time, seconds since 1970, clamped to the two."""
        span = after.at - before.at
        share = 1.0 if span <= 0 else min(1.0, max(0.0, (at - before.at) / span))
        return cls(before, after, share)

    def counter(self, part: str, name: str, where: slice | Ints) -> Floats:
        """A counter of some entities of a part such as ``gpu``."""
        later: Floats = getattr(self.after, part)[name][where]
        if self.share >= 1.0:
            return later
        columns: Columns = getattr(self.before, part)
        if name not in columns:
            return later
        earlier: Floats = columns[name][where]
        between = np.floor(earlier + (later - earlier) * self.share)
        # A counter that was reset in between starts again.
        risen: Floats = np.where(later >= earlier, between, later)
        return risen

    def gauge(self, part: str, name: str, where: slice | Ints) -> Floats:
        """A gauge of some entities of a part."""
        value: Floats = getattr(self.after, part)[name][where]
        return value
