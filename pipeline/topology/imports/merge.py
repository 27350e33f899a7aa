"""Several drafts as one topology: the first source that says something of a field counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from pipeline.errors import ConfigError
from pipeline.topology.imports.draft import Contradiction, Draft, EntityKey, Value
from pipeline.topology.model import Cable, Entity, Rack, Topology


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of merging.

    Attributes:
        contradictions: where sources differ; the first one's word was taken.
    """

    topology: Topology
    contradictions: tuple[Contradiction, ...]


def merge(drafts: Sequence[Draft], cluster: str) -> Merged:
    """Merge drafts.

    A switch that one source names and another knows by GUID is one switch; what is said of a
    host holds for what stands in it, unless that is said otherwise.

    Raises:
        ConfigError: a statement is out of bounds, such as a tray of -1.
    """
    found: list[Contradiction] = []
    entities = _entities(drafts, found)
    _inherit(entities)
    racks = _racks(drafts, entities, found)
    try:
        topology = Topology(
            cluster=cluster,
            racks=tuple(Rack.model_validate({"id": rack, **said}) for rack, said in racks.items()),
            entities=tuple(
                Entity.model_validate({"kind": kind, "id": entity_id, **said})
                for (kind, entity_id), said in entities.items()
            ),
            cables=_cables(drafts, found),
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(f"{first['loc']}: {first['msg']}: {first.get('input')!r}") from exc
    return Merged(topology, tuple(found))


def _entities(
    drafts: Sequence[Draft], found: list[Contradiction]
) -> dict[EntityKey, dict[str, Value]]:
    by_name = {
        str(said["name"]): entity_id
        for draft in drafts
        for (kind, entity_id), said in draft.entities.items()
        if kind == "ib_switch" and entity_id.startswith("0x") and "name" in said
    }
    said_by: dict[EntityKey, dict[str, list[tuple[str, Value]]]] = {}
    for draft in drafts:
        for (kind, entity_id), said in draft.entities.items():
            if kind == "ib_switch":
                entity_id = by_name.get(entity_id, entity_id)
            fields = said_by.setdefault((kind, entity_id), {})
            for name, value in said.items():
                fields.setdefault(name, []).append((draft.source, value))
    entities: dict[EntityKey, dict[str, Value]] = {}
    for (kind, entity_id), fields in said_by.items():
        entities[kind, entity_id] = _taken(kind, entity_id, fields, found)
    return entities


def _taken(
    kind: str, entity_id: str, fields: dict[str, list[tuple[str, Value]]],
    found: list[Contradiction],
) -> dict[str, Value]:  # fmt: skip
    taken = {}
    for name, said in fields.items():
        taken[name] = said[0][1]
        different = {value: source for source, value in reversed(said)}
        if len(different) > 1:
            words = tuple(dict.fromkeys((source, value) for source, value in said))
            found.append(Contradiction(kind, entity_id, name, words))
    return taken


def _inherit(entities: dict[EntityKey, dict[str, Value]]) -> None:
    """What stands in a host stands in the host's rack and tray."""
    for (kind, _), said in entities.items():
        if kind in ("gpu", "hca", "grace_cpu", "nvswitch") and "host" in said:
            host = entities.get(("host", str(said["host"])), {})
            for name in ("rack", "tray"):
                if name not in said and name in host:
                    said[name] = host[name]


def _racks(
    drafts: Sequence[Draft], entities: dict[EntityKey, dict[str, Value]],
    found: list[Contradiction],
) -> dict[str, dict[str, Value]]:  # fmt: skip
    said_by: dict[str, dict[str, list[tuple[str, Value]]]] = {}
    for draft in drafts:
        for rack, said in draft.racks.items():
            fields = said_by.setdefault(rack, {})
            for name, value in said.items():
                fields.setdefault(name, []).append((draft.source, value))
    racks = {rack: _taken("rack", rack, fields, found) for rack, fields in said_by.items()}
    for said in entities.values():
        if "rack" in said:
            racks.setdefault(str(said["rack"]), {})
    return dict(sorted(racks.items()))


def _cables(drafts: Sequence[Draft], found: list[Contradiction]) -> tuple[Cable, ...]:
    """Cables of all sources; a port that two sources wire differently keeps the first's."""
    taken: list[Cable] = []
    ends: dict[tuple[str, int], tuple[str, str]] = {}
    for draft in drafts:
        for cable in draft.cables.values():
            pairs = [
                ((cable.a, cable.a_port), f"{cable.b} port {cable.b_port}"),
                ((cable.b, cable.b_port), f"{cable.a} port {cable.a_port}"),
            ]
            clash = [(end, far) for end, far in pairs if end in ends and ends[end][1] != far]
            for (node, port), far in clash:
                source, other = ends[node, port]
                said = ((source, other), (draft.source, far))
                found.append(Contradiction("port", f"{node}/{port}", "cable", said))
            if clash or pairs[0][0] in ends:
                continue
            for end, far in pairs:
                ends[end] = (draft.source, far)
            taken.append(
                Cable.model_validate(
                    {
                        "kind": cable.kind, "a": cable.a, "a_port": cable.a_port, "b": cable.b,
                        "b_port": cable.b_port, "rate_gbps": cable.rate_gbps,
                    }
                )
            )  # fmt: skip
    return tuple(taken)
