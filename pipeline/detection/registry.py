"""The registry of trained detectors, in ClickHouse: bytes, hash, state, history."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pipeline.detection import model as models
from pipeline.detection.model import Model
from pipeline.detection.spec import DetectorSpec
from pipeline.errors import RackpulseError
from pipeline.streams import Contracts

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

STATES = ("candidate", "shadow", "live", "retired")
_COLUMNS = (
    "detector", "version", "created_at", "trained_from", "trained_until", "artefact", "sha256",
    "spec_sha256", "contract_sha256", "libraries", "metrics", "thresholds", "data_sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Registered:
    """One row of the registry, without its bytes."""

    detector: str
    version: str
    state: str
    since: datetime
    reason: str
    trained_from: datetime
    trained_until: datetime
    metrics: dict[str, Any]


def contract_digest(contracts: Contracts, spec: DetectorSpec) -> str:
    """Hash of the contracts that a detector's SQL reads."""
    text = "\n".join(f"{name} {contracts[name].digest}" for name in spec.streams)
    return models.digest(text.encode())


def store(client: Client, model: Model, spec: DetectorSpec, created_at: datetime) -> str:
    """Put a model into the registry as a candidate.

    Returns:
        SHA-256 of its bytes.
    """
    body = models.dump(model)
    sha256 = models.digest(body)
    row = [
        model.detector, model.version, created_at, model.trained_from, model.trained_until,
        base64.b64encode(body).decode(), sha256, model.spec_digest, model.contract_digest,
        json.dumps(models.libraries()),
        json.dumps(model.metrics), spec.decision.model_dump_json(), model.data_digest,
    ]  # fmt: skip
    client.insert("telemetry.model_version", [row], column_names=list(_COLUMNS))
    set_state(client, model.detector, model.version, "candidate", by="train", reason="trained")
    return sha256


def set_state(
    client: Client, detector: str, version: str, state: str, *, by: str, reason: str
) -> None:
    """Record a change of state, later than all before it."""
    assert state in STATES
    newest = client.query(
        "SELECT max(at) FROM telemetry.model_transition WHERE detector = {d:String}",
        parameters={"d": detector},
    ).result_rows[0][0]
    at = datetime.now(UTC)
    if newest is not None:
        newest = newest if newest.tzinfo else newest.replace(tzinfo=UTC)
        at = max(at, newest + timedelta(microseconds=1))
    client.insert(
        "telemetry.model_transition",
        [[detector, version, state, at, by, reason]],
        column_names=["detector", "version", "state", "at", "by", "reason"],
    )


def registered(client: Client, detector: str | None = None) -> list[Registered]:
    """All versions, newest first."""
    rows = client.query(
        "SELECT detector, version, state, since, reason, trained_from, trained_until, metrics"
        " FROM telemetry.detector_model WHERE {d:String} IN ('', detector)"
        " ORDER BY detector, created_at DESC, version DESC",
        parameters={"d": detector or ""},
    ).result_rows
    return [
        Registered(d, v, state, since, reason, start, until, json.loads(metrics))
        for d, v, state, since, reason, start, until, metrics in rows
    ]


def live_version(client: Client, detector: str) -> str | None:
    """Version that is live, or None."""
    live = [row for row in registered(client, detector) if row.state == "live"]
    return max(live, key=lambda row: row.since).version if live else None


def fetch(client: Client, detector: str, version: str) -> Model:
    """Load one version; its hash and types are checked.

    Raises:
        RackpulseError: there is none, or its bytes are not what was stored.
    """
    rows = client.query(
        "SELECT artefact, sha256 FROM telemetry.model_version"
        " WHERE detector = {d:String} AND version = {v:String} LIMIT 1",
        parameters={"d": detector, "v": version},
    ).result_rows
    if not rows:
        raise RackpulseError(
            f"No version {version} of {detector}: see  rackpulse detect list {detector}"
        )
    sha256 = rows[0][1]
    text = sha256.decode() if isinstance(sha256, bytes) else str(sha256)
    return models.load(base64.b64decode(rows[0][0]), text)


_CACHE: dict[tuple[str, str], Model] = {}


def live_model(client: Client, detector: str) -> Model | None:
    """The live model, or None when nothing was promoted yet; kept in memory by version."""
    version = live_version(client, detector)
    if version is None:
        return None
    key = (detector, version)
    if key not in _CACHE:
        for old in [found for found in _CACHE if found[0] == detector]:
            del _CACHE[old]
        _CACHE[key] = fetch(client, detector, version)
    return _CACHE[key]


def promote(client: Client, detector: str, version: str, *, by: str, reason: str) -> None:
    """Make a version live and retire the one that was."""
    if version not in {row.version for row in registered(client, detector)}:
        raise RackpulseError(
            f"No version {version} of {detector}: see  rackpulse detect list {detector}"
        )
    old = live_version(client, detector)
    if old == version:
        return
    set_state(client, detector, version, "live", by=by, reason=reason)
    if old is not None:
        set_state(client, detector, old, "retired", by=by, reason=f"replaced by {version}")


def rollback(client: Client, detector: str) -> str:
    """Make the version live that was so before the present one.

    Returns:
        The version.

    Raises:
        RackpulseError: there was none before.
    """
    rows = client.query(
        "SELECT version FROM telemetry.model_transition"
        " WHERE detector = {d:String} AND state = 'live' ORDER BY at DESC",
        parameters={"d": detector},
    ).result_rows
    now = live_version(client, detector)
    earlier = [row[0] for row in rows if row[0] != now]
    if not earlier:
        raise RackpulseError(f"{detector} has no earlier live version to go back to")
    promote(client, detector, earlier[0], by="rollback", reason=f"rolled back from {now}")
    return str(earlier[0])
