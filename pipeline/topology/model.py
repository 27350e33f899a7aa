"""The topology file ``topology.json``: what there is, where it stands, what it is wired to."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import ConfigError

EntityKind = Literal[
    "gpu", "grace_cpu", "nvswitch", "hca", "ib_switch", "host", "manager", "cdu", "rack",
    "power_shelf",
]  # fmt: skip
CableKind = Literal["nvlink", "host_leaf", "leaf_spine"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Place(NamedTuple):
    """Where an entity stands; None where unknown. The fields are the contract's columns."""

    host: str | None = None
    rack: str | None = None
    tray: int | None = None
    slot: int | None = None
    rail: int | None = None
    leaf: str | None = None
    cdu: str | None = None


UNPLACED = Place()


class Rack(_Model):
    """One rack and the loop that cools it."""

    id: str
    row: str | None = None
    cdu: str | None = None


class Entity(_Model):
    """One thing with an identity.

    Attributes:
        id: GPU UUID, GUID (``0x`` and sixteen lower-case digits), host name, manager id.
        name: name that people use, such as the switch's node description.
        level: ``hca``, ``leaf`` or ``spine`` for fabric nodes.
        links: number of NVLinks or ports.
    """

    kind: EntityKind
    id: str
    name: str | None = None
    host: str | None = None
    rack: str | None = None
    tray: int | None = Field(default=None, ge=0, le=255)
    slot: int | None = Field(default=None, ge=0, le=255)
    rail: int | None = Field(default=None, ge=0, le=255)
    leaf: str | None = None
    cdu: str | None = None
    level: Literal["hca", "leaf", "spine"] | None = None
    links: int | None = Field(default=None, ge=0)


class Cable(_Model):
    """One cable or copper link between two ports."""

    kind: CableKind
    a: str
    a_port: int = Field(ge=0)
    b: str
    b_port: int = Field(ge=0)
    rate_gbps: float | None = None


class Topology(_Model):
    """The whole file."""

    version: Literal[1] = 1
    cluster: str
    racks: tuple[Rack, ...] = ()
    entities: tuple[Entity, ...] = ()
    cables: tuple[Cable, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Topology:
        seen: set[tuple[str, str]] = set()
        for entity in self.entities:
            if (entity.kind, entity.id) in seen:
                raise ValueError(f"{entity.kind} {entity.id} stands twice in the topology")
            seen.add((entity.kind, entity.id))
        return self

    @cached_property
    def _racks(self) -> dict[str, Rack]:
        return {rack.id: rack for rack in self.racks}

    @cached_property
    def by_id(self) -> dict[tuple[str, str], Entity]:
        """Entities by kind and id."""
        return {(entity.kind, entity.id): entity for entity in self.entities}

    @cached_property
    def places(self) -> dict[tuple[str, str], Place]:
        """Place of every entity, by kind and id; the rack's loop fills in the CDU."""
        found: dict[tuple[str, str], Place] = {}
        for entity in self.entities:
            rack = self._racks.get(entity.rack or "")
            cdu = entity.cdu or (rack.cdu if rack else None)
            found[entity.kind, entity.id] = Place(
                entity.host, entity.rack, entity.tray, entity.slot, entity.rail, entity.leaf, cdu
            )
        return found

    def place(self, kind: str, entity_id: str) -> Place:
        """Where an entity stands; :data:`UNPLACED` when the file does not know it."""
        return self.places.get((kind, entity_id), UNPLACED)

    @cached_property
    def peers(self) -> dict[tuple[str, int], tuple[str, int]]:
        """The other end of each cable, by id and port, in both directions."""
        ends = {}
        for cable in self.cables:
            ends[cable.a, cable.a_port] = (cable.b, cable.b_port)
            ends[cable.b, cable.b_port] = (cable.a, cable.a_port)
        return ends


def load_topology(path: Path) -> Topology:
    """Read a topology file.

    Raises:
        ConfigError: the file is missing, unreadable, not JSON, or not a topology; the text
            says what to do.
    """
    try:
        return Topology.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as exc:
        raise ConfigError(
            f"Topology file {path} is missing: make one with  rackpulse topology import"
        ) from exc
    except OSError as exc:
        raise ConfigError(f"Topology file {path} cannot be read: {exc.strerror}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"Topology file {path}: {where}: {first['msg']}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"Topology file {path} is not JSON: {exc}") from exc
