"""A labelled set played through a detector minute by minute, as it would have been live."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from pipeline.detection.engine import Judged, judge_frame
from pipeline.detection.findings import Finding, findings_at
from pipeline.detection.frame import Frame
from pipeline.detection.model import Model
from pipeline.detection.spec import DetectorSpec


@dataclass
class Played:
    """One detector over one set.

    Attributes:
        frame: the whole set's feature rows; training minutes included.
        first: index of the first minute that is judged.
    """

    spec: DetectorSpec
    model: Model
    frame: Frame
    judged: Judged
    first: int

    @classmethod
    def of(cls, spec: DetectorSpec, model: Model, frame: Frame, first: int) -> Played:
        """Judge a frame once; verdicts of a minute use nothing that comes later."""
        judged = judge_frame(frame, spec, model.baselines, model.short, model.long, model.q)
        return cls(spec, model, frame, judged, first)

    def findings(self, index: int) -> list[Finding]:
        """Findings of one minute."""
        return findings_at(self.judged, self.spec, index, self.model.version)

    def index_of(self, end: datetime) -> int:
        """Index of a window, by its end."""
        return self.frame.ends.index(end)

    def has_verdict(self, index: int, ids: set[str]) -> bool:
        """Whether one of the entities was judged in a minute."""
        columns = [i for i, entity in enumerate(self.frame.entities) if entity in ids]
        return bool(np.isfinite(self.judged.short.p[index, columns]).any())
