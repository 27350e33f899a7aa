"""A small detector for tests."""

from __future__ import annotations

from typing import Any

from pipeline.detection.spec import DetectorSpec


def small_spec(**changes: Any) -> DetectorSpec:
    """Features a to d of one family; d is bad when low, the others when high."""
    features = [
        {
            "name": name, "label": name.upper(), "unit": "K", "family": "one", "floor": 0.1,
            "min_effect": 1.0, "bad": "low" if name == "d" else "high",
        }
        for name in "abcd"
    ]  # fmt: skip
    raw: dict[str, Any] = {
        "id": "small", "title": "Small", "description": "For tests", "entity_kind": "gpu",
        "noun": "GPU", "streams": ["gpu"], "location": ["rack"],
        "peer_group": [{"name": "same rack", "by": ["rack"], "min_peers": 8}],
        "feature": features,
    }  # fmt: skip
    return DetectorSpec.model_validate({**raw, **changes})
