"""A topology as rows of its version tables; the caller brings the client."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pipeline.topology.model import Cable, Entity, Rack, Topology

_ENTITY = ("name", "host", "rack", "tray", "slot", "rail", "leaf", "cdu", "level", "links")
_CABLE = ("kind", "a", "a_port", "b", "b_port", "rate_gbps")


# Any: a clickhouse-connect client; this package imports no store.
Client = Any

# Set, not inherited: defaults of newer servers insert later and drop repeats in silence.
INSERT_SETTINGS = {"async_insert": 0, "insert_deduplicate": 0}


def canonical(topology: Topology) -> str:
    """The topology as text that is the same for the same content, whatever its order."""
    raw = topology.model_dump(exclude_none=True)
    raw["racks"] = sorted(raw.get("racks", ()), key=lambda rack: str(rack["id"]))
    raw["entities"] = sorted(raw.get("entities", ()), key=lambda e: (str(e["kind"]), str(e["id"])))
    raw["cables"] = sorted(raw.get("cables", ()), key=lambda c: (str(c["a"]), int(c["a_port"])))
    return json.dumps(raw, sort_keys=True)


def digest(topology: Topology) -> str:
    """sha256 of the canonical text."""
    return hashlib.sha256(canonical(topology).encode()).hexdigest()


def store(
    client: Client,
    topology: Topology,
    now: datetime,
    sources: Sequence[str] = (),
    contradictions: Sequence[str] = (),
) -> tuple[int, bool]:
    """Write a version, unless the newest one has the same content.

    Returns:
        Number of the version, and whether it is new.
    """
    newest = client.query(
        "SELECT version, sha256 FROM telemetry.topology_version WHERE cluster = {cluster:String} "
        "ORDER BY version DESC LIMIT 1",
        {"cluster": topology.cluster},
    ).result_rows
    mark = digest(topology)
    if newest and newest[0][1] == mark:
        return int(newest[0][0]), False
    # An import that broke off left rows of a number that no line of topology_version has.
    used = client.query(
        "SELECT max(version) FROM telemetry.topology_entity WHERE cluster = {cluster:String}",
        {"cluster": topology.cluster},
    ).result_rows
    version = max(int(newest[0][0]) if newest else 0, int(used[0][0]) if used else 0) + 1
    cluster = topology.cluster
    entities = [
        [cluster, version, entity.kind, entity.id,
         *(getattr(entity, name) for name in _ENTITY[:-3]),
         topology.place(entity.kind, entity.id).cdu, entity.level, entity.links]
        for entity in topology.entities
    ]  # fmt: skip
    cables = [
        [cluster, version, *(getattr(cable, name) for name in _CABLE)] for cable in topology.cables
    ]
    columns = ["cluster", "version", "kind", "id", *_ENTITY]
    if entities:
        client.insert("topology_entity", entities, columns, settings=INSERT_SETTINGS)
    if cables:
        client.insert(
            "topology_cable", cables, ["cluster", "version", *_CABLE], settings=INSERT_SETTINGS
        )
    client.insert(
        "topology_version",
        [[cluster, version, now, mark, list(sources), len(topology.racks), len(entities),
          len(cables), list(contradictions)]],
        ["cluster", "version", "imported_at", "sha256", "sources", "racks", "entities", "cables",
         "contradictions"],
        settings=INSERT_SETTINGS,
    )  # fmt: skip
    return version, True


def load(client: Client, cluster: str) -> Topology | None:
    """The newest version of a cluster; None where there is none. Racks' rows are not kept."""
    found = client.query(
        "SELECT max(version), count() FROM telemetry.topology_version "
        "WHERE cluster = {cluster:String}",
        {"cluster": cluster},
    ).result_rows
    if not found or not int(found[0][1]):
        return None
    which = {"cluster": cluster, "version": int(found[0][0])}
    entities = client.query(
        f"SELECT kind, id, {', '.join(_ENTITY)} FROM telemetry.topology_entity "
        "WHERE cluster = {cluster:String} AND version = {version:UInt64}",
        which,
    ).result_rows
    cables = client.query(
        f"SELECT {', '.join(_CABLE)} FROM telemetry.topology_cable "
        "WHERE cluster = {cluster:String} AND version = {version:UInt64}",
        which,
    ).result_rows
    names = ("kind", "id", *_ENTITY)
    items = [
        Entity.model_validate({n: v for n, v in zip(names, row, strict=True) if v is not None})
        for row in entities
    ]
    racks: dict[str, str | None] = {}
    for entity in items:
        if entity.rack:
            racks[entity.rack] = racks.get(entity.rack) or entity.cdu
    return Topology(
        cluster=cluster,
        racks=tuple(Rack(id=rack, cdu=cdu) for rack, cdu in sorted(racks.items())),
        entities=tuple(items),
        cables=tuple(Cable.model_validate(dict(zip(_CABLE, row, strict=True))) for row in cables),
    )
