"""Scoring of one window: read, judge, write; a repeat for the same window writes nothing new."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.detection import registry
from pipeline.detection.engine import Judged, judge_frame
from pipeline.detection.findings import COLUMNS, Finding, as_row, findings_at
from pipeline.detection.frame import MINUTE, read_frame, whole_minute
from pipeline.detection.gate import inspect
from pipeline.detection.model import Model
from pipeline.detection.peers import find_peers
from pipeline.detection.residuals import commission
from pipeline.detection.spec import DetectorSpec, load_specs
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from pipeline.settings import Settings


@dataclass
class DetectorScore:
    """What scoring one detector gave.

    Attributes:
        skipped: why nothing was done: no live model, or this window is done already.
    """

    detector: str
    model_version: str | None = None
    entities: int = 0
    verdicts: int = 0
    candidates: int = 0
    findings: int = 0
    took_ms: int = 0
    skipped: str | None = None


@dataclass
class ScoreReport:
    """What scoring one window gave."""

    window_end: datetime
    detectors: list[DetectorScore] = field(default_factory=list)


def lookback_minutes(spec: DetectorSpec) -> int:
    """Minutes of rows that the verdict on one window needs."""
    decision = spec.decision
    return decision.clear_minutes + decision.long_minutes + spec.gate.settle_minutes


def score(
    client: Client, settings: Settings, window_end: datetime,
    detectors: Sequence[str] | None = None, *, specs: dict[str, DetectorSpec] | None = None,
    models: Mapping[str, Model] | None = None,
) -> ScoreReport:  # fmt: skip
    """Score the minute that ends at ``window_end`` with the live models.

    Args:
        window_end: a whole minute, UTC. The verdict depends on stored rows before it alone,
            never on the time of the call.
        detectors: ids; by default all.
        models: by detector, in place of the live ones: see :func:`commissioned`.

    Raises:
        RackpulseError: ``window_end`` is no whole minute.
        ConfigError: a detector is unknown.
    """
    whole_minute(window_end)
    specs = specs or load_specs()
    report = ScoreReport(window_end)
    for name in detectors or list(specs):
        if name not in specs:
            raise ConfigError(f"No detector {name}: there are {', '.join(specs)}")
        model = (models or {}).get(name) or registry.live_model(client, name)
        scored = _score_one(client, settings.cluster, window_end, specs[name], model)
        report.detectors.append(scored)
    return report


def commissioned(
    client: Client, settings: Settings, start: datetime, end: datetime
) -> dict[str, Model]:
    """The live models, for a cluster that they were not trained on.

    What a model knows of single entities holds for its own cluster alone, whatever the names
    say: it is replaced by what these entities show in healthy time of their own.

    Args:
        settings: of the other cluster.
        start, end: its healthy time, whole minutes, UTC.

    Returns:
        By detector; only those with a live model.
    """
    found = {}
    for name, spec in load_specs().items():
        model = registry.live_model(client, name)
        if model is None:
            continue
        frame = read_frame(client, spec, settings.cluster, start, end)
        fit = inspect(frame, spec).fit
        peers = find_peers(frame, spec, fit)
        known = commission(frame, spec, peers, model.baselines, fit)
        found[name] = replace(model, baselines=known)
    return found


def _score_one(
    client: Client, cluster: str, window_end: datetime, spec: DetectorSpec, model: Model | None
) -> DetectorScore:
    began = time.monotonic()
    out = DetectorScore(spec.id)
    if model is None:
        out.skipped = f"no live model: run  rackpulse detect train {spec.id}"
        return out
    out.model_version = model.version
    if is_scored(client, cluster, spec.id, window_end):
        out.skipped = "already scored"
        return out
    frame = read_frame(
        client, spec, cluster, window_end - MINUTE * lookback_minutes(spec), window_end
    )
    judged = judge_frame(frame, spec, model.baselines, model.short, model.long, model.q)
    found = findings_at(judged, spec, frame.shape[0] - 1, model.version)
    write_window(client, cluster, judged, spec, frame.shape[0] - 1, found, model, began, out)
    return out


def is_scored(client: Client, cluster: str, detector: str, window_end: datetime) -> bool:
    """Whether a window is done: its run row is written last."""
    rows = client.query(
        "SELECT count() FROM telemetry.score_run WHERE cluster = {c:String}"
        " AND detector = {d:String} AND window_end = {w:DateTime('UTC')}",
        parameters={"c": cluster, "d": detector, "w": window_end},
    ).result_rows
    return bool(rows[0][0])


def write_window(
    client: Client, cluster: str, judged: Judged, spec: DetectorSpec, index: int,
    found: Sequence[Finding], model: Model, began: float, out: DetectorScore,
) -> None:  # fmt: skip
    """Write scores, findings and, last, the run."""
    frame = judged.frame
    window_end = frame.ends[index]
    seen = np.asarray(np.any(frame.samples[max(0, index - 3) : index + 1] > 0, axis=0))
    verdict = np.isfinite(judged.short.p[index]) & seen
    if seen.any():
        client.insert_arrow(
            "telemetry.detector_score", _score_table(judged, cluster, spec, index, seen, model)
        )
    if found:
        client.insert(
            "telemetry.finding", [as_row(item, cluster) for item in found],
            column_names=list(COLUMNS),
        )  # fmt: skip
    out.entities, out.verdicts = int(seen.sum()), int(verdict.sum())
    out.candidates = int((judged.short.candidate[index] | judged.long.candidate[index]).sum())
    out.findings = len(found)
    fit = judged.structure.fit[index]
    no_peers = seen & fit & ~verdict
    out.took_ms = int((time.monotonic() - began) * 1000)
    client.insert(
        "telemetry.score_run",
        [[
            cluster, spec.id, window_end, model.version, datetime.now(UTC), out.entities,
            out.verdicts, int(no_peers.sum()), int((seen & ~fit).sum()), out.candidates,
            out.findings, out.took_ms,
        ]],
        column_names=[
            "cluster", "detector", "window_end", "model_version", "scored_at", "entities",
            "verdicts", "no_peers", "not_fit", "candidates", "findings", "took_ms",
        ],
    )  # fmt: skip


def _score_table(
    judged: Judged, cluster: str, spec: DetectorSpec, index: int, seen: np.ndarray, model: Model
) -> pa.Table:
    which = np.flatnonzero(seen)
    count = len(which)
    short, long = judged.short, judged.long
    p = short.p[index, which]
    names = np.array([family.name for family in model.short] or [""], dtype=object)
    family = names[np.minimum(short.family[index, which], len(names) - 1)]

    def same(text: str) -> pa.Array:
        return pa.array([text] * count, pa.string())

    end = int(judged.frame.ends[index].timestamp())
    return pa.table({
        "cluster": same(cluster),
        "detector": same(spec.id),
        "window_end": pa.array(np.full(count, end, dtype=np.uint32)),
        "entity_id": pa.array([judged.frame.entities[i] for i in which], pa.string()),
        "model_version": same(model.version),
        "verdict": pa.array(np.isfinite(p)),
        "p_value": pa.array(np.nan_to_num(p, nan=1.0)),
        "p_long": pa.array(np.nan_to_num(long.p[index, which], nan=1.0)),
        "effect": pa.array(
            np.maximum(short.effect[index, which], long.effect[index, which]).astype(np.float32)
        ),
        "family": pa.array(list(np.where(np.isfinite(p), family, "")), pa.string()),
        "level": pa.array(
            np.maximum(short.level[index, which], long.level[index, which]).astype(np.uint8)
        ),
    })  # fmt: skip
