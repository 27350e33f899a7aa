"""Training: baselines, forests and references from healthy time, then the promotion gates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.detection import registry
from pipeline.detection.conformal import BoolArray
from pipeline.detection.engine import (
    Judged,
    judge_residuals,
    largest_effect,
    long_residuals,
)
from pipeline.detection.families import fit_family
from pipeline.detection.frame import MINUTE, Frame, read_frame, whole_minute
from pipeline.detection.gate import inspect, ruled_out
from pipeline.detection.gates import check_gates
from pipeline.detection.model import Model
from pipeline.detection.peers import find_peers
from pipeline.detection.persistence import judge
from pipeline.detection.residuals import Baseline, fit_baselines, residuals
from pipeline.detection.spec import DetectorSpec, get_spec
from pipeline.errors import RackpulseError
from pipeline.streams import load_contracts

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from pipeline.settings import Settings

LONGEST = timedelta(days=14)
SHORTEST_MINUTES = 45
# Share of the training window, its early part, that models are fitted on; the rest calibrates.
LEARN_SHARE = 0.6
# Minutes in a row beyond the smallest effect that matters: more than an excursion.
LASTING = 8
SEED = 20260101


@dataclass
class TrainReport:
    """What came of training one detector.

    Attributes:
        state: ``live`` when the gates let it through, else ``candidate``.
        gates: reasons for which it was held back; empty when live.
    """

    detector: str
    version: str
    state: str
    trained_from: datetime
    trained_until: datetime
    entities: int
    rows: int
    gates: list[str] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


def train(
    client: Client, settings: Settings, detector: str, until: datetime,
    *, spec: DetectorSpec | None = None,
) -> TrainReport:  # fmt: skip
    """Train one detector on what is stored before ``until``, and promote it if it may be.

    Args:
        until: end of the training window, a whole minute, UTC. It begins at the first stored
            sample, 14 days before at most.

    Raises:
        RackpulseError: there is too little to learn from.
    """
    spec = spec or get_spec(detector)
    whole_minute(until)
    contracts = load_contracts()
    start = first_minute(client, spec, settings.cluster, until)
    frame = read_frame(client, spec, settings.cluster, start, until)
    excluded = excluded_minutes(client, spec, settings.cluster, frame)
    old = registry.live_model(client, spec.id)
    frozen = old.baselines if old is not None else None
    model = fit_model(frame, spec, excluded, frozen, registry.contract_digest(contracts, spec))
    registry.store(client, model, spec, datetime.now(UTC))
    gates = check_gates(frame, spec, model, old)
    state = "candidate"
    if gates:
        registry.set_state(
            client, spec.id, model.version, "candidate", by="gates", reason="; ".join(gates)
        )
    else:
        registry.promote(client, spec.id, model.version, by="gates", reason="passed the gates")
        state = "live"
    return TrainReport(
        spec.id, model.version, state, start, until, len(frame.entities),
        int((frame.samples > 0).sum()), gates, model.metrics,
    )  # fmt: skip


def first_minute(client: Client, spec: DetectorSpec, cluster: str, until: datetime) -> datetime:
    """Where the training window begins.

    Raises:
        RackpulseError: less than three quarters of an hour is stored.
    """
    row = client.query(
        f"SELECT min(sampled_at), count() FROM telemetry.{spec.streams[0]}"
        " WHERE cluster = {cluster:String} AND sampled_at >= {start:DateTime64(3, 'UTC')}"
        " AND sampled_at < {end:DateTime64(3, 'UTC')}",
        parameters={"cluster": cluster, "start": until - LONGEST, "end": until},
    ).result_rows[0]
    need = f"training needs {SHORTEST_MINUTES} minutes of {spec.streams[0]} rows before it"
    if not row[1]:
        raise RackpulseError(f"Nothing of cluster {cluster} is stored before {until}: {need}")
    first: datetime = row[0] if row[0].tzinfo else row[0].replace(tzinfo=UTC)
    start = first.replace(second=0, microsecond=0)
    if start < first:
        start += MINUTE
    if (until - start) / MINUTE < SHORTEST_MINUTES:
        raise RackpulseError(
            f"Only {(until - start) / MINUTE:.0f} minutes of cluster {cluster} are stored before"
            f" {until:%H:%M}: {need}"
        )
    return start


def excluded_minutes(client: Client, spec: DetectorSpec, cluster: str, frame: Frame) -> BoolArray:
    """Minutes x entities inside an incident or a silence: nothing is learnt there."""
    out = np.zeros(frame.shape, dtype=bool)
    if not frame.entities:
        return out
    place = {entity: i for i, entity in enumerate(frame.entities)}
    ends = np.array([end.timestamp() for end in frame.ends])
    rows = client.query(
        "SELECT entity_id, toUnixTimestamp(min(window_end)), toUnixTimestamp(max(window_end))"
        " FROM telemetry.finding WHERE cluster = {c:String} AND detector = {d:String}"
        " AND raises AND window_end > {start:DateTime('UTC')}"
        " AND window_end <= {end:DateTime('UTC')}"
        " GROUP BY entity_id, intDiv(toUnixTimestamp(window_end), 3600)",
        parameters={"c": cluster, "d": spec.id, "start": frame.ends[0], "end": frame.ends[-1]},
    ).result_rows
    for entity, first, last in rows:
        if entity in place:
            out[(ends >= first - 600) & (ends <= last + 600), place[entity]] = True
    rows = client.query(
        "SELECT scope, entity_id, toUnixTimestamp64Milli(starts_at) / 1000,"
        " toUnixTimestamp64Milli(ends_at) / 1000 FROM telemetry.silence_now"
        " WHERE cluster = {c:String} AND detector IN ('', {d:String})",
        parameters={"c": cluster, "d": spec.id},
    ).result_rows
    for scope, entity, first, last in rows:
        when = (ends > first) & (ends <= last + 60)
        if scope == "all":
            out[when] = True
        elif entity in place:
            out[when, place[entity]] = True
        elif scope in frame.labels:
            codes = frame.labels[scope]
            if entity in codes.names:
                out |= when[:, None] & (codes.codes == codes.names.index(entity))
    return out


def fit_model(
    frame: Frame, spec: DetectorSpec, excluded: BoolArray,
    frozen: dict[str, Baseline] | None, contract_digest: str,
) -> Model:  # fmt: skip
    """Everything that is learnt, from feature rows.

    Early time is fitted on, later time calibrates: splits are by time, never at random.
    """
    structure = inspect(frame, spec)
    use = structure.fit & ~excluded & ~ruled_out(frame, spec)
    peers = find_peers(frame, spec, structure.fit)
    learn = np.zeros(frame.shape, dtype=bool)
    learn[: int(frame.shape[0] * LEARN_SHARE)] = True
    baselines = fit_baselines(frame, spec, peers, use & learn, frozen)
    found = residuals(frame, spec, peers, baselines, structure.fit)
    lasting = long_residuals(found, spec, peers, baselines, frame.entities)
    # A fault that hides in the training data: beyond the effect for minutes on end.
    suspect = _lasting(np.asarray(largest_effect(found, spec, spec.decision.min_z) >= 1))
    use &= ~suspect
    short = [
        fit_family(name, spec, found.z, use & learn, use & ~learn, SEED) for name in spec.families
    ]
    long = [
        fit_family(name, spec, lasting.z, use & learn, use & ~learn, SEED) for name in spec.families
    ]
    minutes = minute_hashes(frame)
    version, data = _version(frame, spec, minutes)
    model = Model(
        spec.id, version, spec.digest, contract_digest,
        frame.ends[0] - MINUTE, frame.ends[-1], baselines, short, long, rate(spec),
        data_digest=data, minutes=[text for text in minutes if text],
    )  # fmt: skip
    judged = judge_residuals(frame, spec, structure, peers, found, lasting, short, long, model.q)
    model.metrics = _metrics(judged, spec, use, suspect, ~learn)
    return model


def rate(spec: DetectorSpec) -> float:
    """False-discovery rate per window that follows from the operator's knob.

    A week has 10,080 windows, about 1,000 of them independent (evidence lasts some ten
    minutes). Effects and persistence let at most one candidate in some twenty through, so one
    page a week allows a rate of 0.02. What it really gives is measured, not promised.
    """
    return float(np.clip(0.02 * spec.decision.false_pages_per_week, 1e-4, 0.2))


def _lasting(beyond: BoolArray) -> BoolArray:
    """Where a condition holds for :data:`LASTING` minutes on end, and those minutes."""
    minutes = len(beyond)
    out = np.zeros_like(beyond)
    if minutes < LASTING:
        return out
    views = np.lib.stride_tricks.sliding_window_view(beyond, LASTING, axis=0)
    windows = np.asarray(np.all(views, axis=-1))
    for back in range(LASTING):
        out[back : back + len(windows)] |= windows
    return out


def minute_hashes(frame: Frame) -> list[str]:
    """Hash of the feature rows of each minute; empty for a minute without rows."""
    entities = "\0".join(frame.entities).encode()
    found = []
    for minute in range(frame.shape[0]):
        if not (frame.samples[minute] > 0).any():
            found.append("")
            continue
        hashed = hashlib.sha256(entities)
        for name in sorted(frame.values):
            hashed.update(name.encode())
            hashed.update(np.ascontiguousarray(frame.values[name][minute]).tobytes())
        found.append(hashed.hexdigest()[:12])
    return found


def _version(frame: Frame, spec: DetectorSpec, minutes: Sequence[str]) -> tuple[str, str]:
    """A version that follows from the data and the specification, and the data's hash."""
    data = hashlib.sha256(" ".join(minutes).encode()).hexdigest()
    version = hashlib.sha256(f"{data} {spec.digest}".encode()).hexdigest()[:8]
    return f"{frame.ends[-1]:%Y%m%dT%H%M}-{version}", data


def _metrics(
    judged: Judged, spec: DetectorSpec, use: BoolArray, suspect: BoolArray, held_out: BoolArray
) -> dict[str, Any]:
    frame = judged.frame
    later = np.flatnonzero(held_out[:, 0]) if frame.entities else np.array([], dtype=int)
    pages = 0
    raised = np.zeros(len(frame.entities), dtype=bool)
    for minute in later:
        upto = slice(max(0, minute - 30), minute + 1)
        now = judge(judged.short.level[upto], judged.long.level[upto], spec.decision).raises
        pages += int((now & ~raised).sum())
        raised = now
    hours = max(len(later) / 60, 1e-9)
    return {
        "entities": len(frame.entities),
        "minutes": frame.shape[0],
        "rows_used": int(use.sum()),
        "rows_suspect": int(suspect.sum()),
        "entities_suspect": _names(frame, suspect),
        "held_out_hours": round(hours, 2),
        "held_out_raises": pages,
        "candidates_per_hour": round(float(judged.short.candidate[later].sum()) / hours, 2),
    }


def _names(frame: Frame, mask: BoolArray) -> Sequence[str]:
    return [frame.names[i] for i in np.flatnonzero(mask.sum(axis=0) >= LASTING)][:20]
