"""What is odd in a topology: each finding names what and where."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipeline.topology.model import Topology

_SHOWN = 5


def check(topology: Topology) -> list[str]:
    """Findings, worst first; none for a topology that is complete and sound."""
    return [*_doubled(topology), *_cables(topology), *_unplaced(topology), *_racks(topology)]


def _doubled(topology: Topology) -> Iterator[str]:
    seats: dict[tuple[str, str, int, int], list[str]] = defaultdict(list)
    for entity in topology.entities:
        if entity.kind in ("gpu", "grace_cpu") and None not in (entity.tray, entity.slot):
            place = (entity.kind, entity.rack or "", entity.tray or 0, entity.slot or 0)
            seats[place].append(entity.id)
    for (kind, rack, tray, slot), ids in seats.items():
        if len(ids) > 1:
            yield f"{len(ids)} {kind}s in {rack} tray {tray} slot {slot}: {', '.join(ids)}"


def _cables(topology: Topology) -> Iterator[str]:
    ids = {entity.id for entity in topology.entities}
    uses: Counter[tuple[str, int]] = Counter()
    unknown: set[str] = set()
    for cable in topology.cables:
        uses[cable.a, cable.a_port] += 1
        uses[cable.b, cable.b_port] += 1
        unknown.update(end for end in (cable.a, cable.b) if end not in ids)
    for (node, port), count in uses.items():
        if count > 1:
            yield f"port {port} of {node} has {count} cables"
    if unknown:
        yield f"{len(unknown)} ends of cables are no entity: {_some(unknown)}"


def _unplaced(topology: Topology) -> Iterator[str]:
    for kind in ("gpu", "host", "hca", "nvswitch"):
        of_kind = [entity for entity in topology.entities if entity.kind == kind]
        lost = [entity.name or entity.id for entity in of_kind if topology.places[
            entity.kind, entity.id].rack is None]  # fmt: skip
        if lost:
            yield f"{len(lost)} of {len(of_kind)} {kind}s have no rack: {_some(lost)}"
    rails: dict[str, set[int]] = defaultdict(set)
    for entity in topology.entities:
        if entity.kind == "hca" and entity.leaf and entity.rail is not None:
            rails[entity.leaf].add(entity.rail)
    mixed = [leaf for leaf, found in rails.items() if len(found) > 1]
    if mixed:
        yield f"{len(mixed)} leaves serve more than one rail: {_some(mixed)}"


def _racks(topology: Topology) -> Iterator[str]:
    dry = [rack.id for rack in topology.racks if rack.cdu is None]
    if dry:
        yield f"{len(dry)} of {len(topology.racks)} racks have no CDU: {_some(dry)}"


def _some(names: set[str] | list[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
