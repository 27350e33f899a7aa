"""What Xid codes mean, from ``xid_catalogue.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Xid:
    """One code.

    Attributes:
        name: short stable word.
        text: what happened.
        action: what to do about it.
        severity: info, warning or critical.
    """

    code: int
    name: str
    text: str
    action: str
    severity: str


NVLINK5 = range(144, 151)


@cache
def catalogue() -> dict[int, Xid]:
    """All known codes."""
    text = (resources.files("pipeline.collectors") / "xid_catalogue.toml").read_text("utf-8")
    raw = tomllib.loads(text)
    actions = raw["actions"]
    return {
        code: Xid(code, entry["name"], entry["text"], actions[entry["action"]], entry["severity"])
        for entry in raw["xid"]
        for code in entry["codes"]
    }


def describe(code: int, message: str = "") -> Xid:
    """A code, known or not; the message decides where the code alone cannot."""
    known = catalogue().get(code)
    if known is None:
        text = f"Xid {code}, which the catalogue does not know"
        return Xid(code, "unknown", text, catalogue()[92].action, "warning")
    if code in NVLINK5 and " fatal" in f" {message.lower()}".replace("nonfatal", ""):
        return Xid(code, known.name, known.text, known.action, "critical")
    return known
