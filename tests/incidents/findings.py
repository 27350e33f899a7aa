"""Findings for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pipeline.detection.findings import Finding

WINDOW = datetime(2026, 3, 2, 11, 12, tzinfo=UTC)


def finding(entity_id: str, **changes: Any) -> Finding:
    """A raised anomaly of a GPU; every field can be changed."""
    raw: dict[str, Any] = {
        "detector": "straggler_gpu", "window_end": WINDOW, "entity_kind": "gpu",
        "entity_id": entity_id, "entity_name": entity_id, "kind": "anomaly", "raises": True,
        "level": 3, "severity": "warning", "cause": "capped_clocks", "cause_confidence": 0.9,
        "summary": f"GPU {entity_id}: slow.", "location": {}, "evidence": [], "peers": {},
        "suggested_action": "look", "p_value": 1e-8, "score": 8.0, "effect": 3.0,
        "first_window": WINDOW, "model_version": "v1",
    }  # fmt: skip
    return Finding(**{**raw, **changes})


def rack(
    name: str, cause: str = "blocked_quick_disconnect", loop: str = "cdu-1", **more: Any
) -> Finding:
    return finding(
        name, detector="hot_rack", entity_kind="rack", cause=cause,
        location={"rack": name, "cdu": loop}, **more,
    )  # fmt: skip


def gpu(name: str, rack_id: str = "rack-01", **more: Any) -> Finding:
    place = {"rack": rack_id, "cdu": "cdu-1", "host": f"{rack_id}-tray-01", "job": "job-1"}
    return finding(name, location={**place, **more.pop("location", {})}, **more)


def port(
    entity_id: str, peer: str, tier: str, features: list[str], cause: str, **more: Any
) -> Finding:
    place = {"node": entity_id.split("/")[0], "peer": peer, "tier": tier}
    return finding(
        entity_id, detector="congested_link", entity_kind="ib_port", cause=cause,
        location={**place, **more.pop("location", {})},
        evidence=[{"feature": name} for name in features], **more,
    )  # fmt: skip


HOT = [{"feature": "thermal_share"}]
