"""What one source says: statements about entities and cables, not yet a topology."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from pipeline.errors import ConfigError

Value = str | int
EntityKey = tuple[str, str]
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")

# Gb/s of one lane, by the name that InfiniBand tools print.
LANE_GBPS = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip


class NoTopologyError(ConfigError):
    """A source holds no topology; what was imported before is kept."""


@dataclass(frozen=True, slots=True)
class DraftCable:
    """One cable, its ends in order of their ids."""

    kind: str
    a: str
    a_port: int
    b: str
    b_port: int
    rate_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sources say different things of one entity.

    Attributes:
        said: what each source says; the first one counts.
    """

    kind: str
    id: str
    field: str
    said: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        words = "; ".join(f"{source} says {value}" for source, value in self.said)
        return f"{self.kind} {self.id}: {self.field}: {words}: the first is taken"


@dataclass(slots=True)
class Draft:
    """What one source says.

    Attributes:
        source: its name, for reports.
        entities: statements by kind and id.
        racks: statements about racks by id.
        skipped: lines or items that could not be read, by reason.
        notes: remarks for a person.
        facts: counts that the report shows, such as switches or cables.
    """

    source: str
    entities: dict[EntityKey, dict[str, Value]] = field(default_factory=dict)
    racks: dict[str, dict[str, Value]] = field(default_factory=dict)
    cables: dict[tuple[str, int, str, int], DraftCable] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, int] = field(default_factory=dict)

    def say(self, kind: str, entity_id: str, **fields: Value | None) -> None:
        """State something of an entity; what is None is not stated."""
        known = self.entities.setdefault((kind, entity_id), {})
        known.update({name: value for name, value in fields.items() if value is not None})

    def say_rack(self, rack: str, **fields: Value | None) -> None:
        """State something of a rack."""
        known = self.racks.setdefault(rack, {})
        known.update({name: value for name, value in fields.items() if value is not None})

    def cable(
        self, kind: str, a: str, a_port: int, b: str, b_port: int, rate_gbps: float | None = None
    ) -> None:
        """State a cable; both of its ends may state it."""
        if (b, b_port) < (a, a_port):
            a, a_port, b, b_port = b, b_port, a, a_port
        key = (a, a_port, b, b_port)
        known = self.cables.get(key)
        if known is None or known.rate_gbps is None:
            self.cables[key] = DraftCable(kind, a, a_port, b, b_port, rate_gbps)


def guid(text: str) -> str | None:
    """A GUID as ``0x`` and sixteen lower-case digits; None where it is none."""
    match = _GUID.fullmatch(text.strip())
    return f"0x{int(match[1], 16):016x}" if match else None


def rate_gbps(width: int, speed: str) -> float | None:
    """Line rate of ``4x NDR``; None for a speed that is not known, such as ``???``."""
    lane = LANE_GBPS.get(speed.upper())
    return None if lane is None else width * lane


MAX_HOSTS = 100_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def host_list(text: str) -> list[str]:
    """Hosts of a Slurm host list: ``srv[1101-1108,1110],login1``, zeros in front kept.

    Raises:
        ConfigError: the list is not one.
    """
    hosts: list[str] = []
    for part in _split_outside_brackets(text):
        hosts += _expand(part)
        if len(hosts) > MAX_HOSTS:
            raise ConfigError(f"more than {MAX_HOSTS} hosts in {text[:80]!r}")
    return hosts


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for number, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char in ", \t\n" and depth == 0:
            parts.append(text[start:number])
            start = number + 1
        if not 0 <= depth <= 1:
            raise ConfigError(f"not a host list: {text[:80]!r}")
    if depth:
        raise ConfigError(f"not a host list: {text[:80]!r}")
    return [part for part in [*parts, text[start:]] if part]


def _expand(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    tails = _expand(after) if after else [""]
    hosts = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise ConfigError(f"not a host list: {part[:80]!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= MAX_HOSTS:
            raise ConfigError(f"more than {MAX_HOSTS} hosts in {part[:80]!r}")
        for number in range(int(first), int(last) + 1):
            hosts += [f"{before}{number:0{len(first)}d}{tail}" for tail in tails]
    return hosts
