"""Detection: what is abnormal, how sure, and why."""

from pipeline.detection.score import DetectorScore, ScoreReport, commissioned, score
from pipeline.detection.spec import DetectorSpec, load_specs
from pipeline.detection.train import TrainReport, train

__all__ = [
    "DetectorScore", "DetectorSpec", "ScoreReport", "TrainReport", "commissioned", "load_specs",
    "score", "train",
]  # fmt: skip
