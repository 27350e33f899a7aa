"""Where every entity is: racks, trays, slots, rails, leaf switches, coolant loops, cables."""

from pipeline.topology.model import (
    Cable,
    Entity,
    Place,
    Rack,
    Topology,
    load_topology,
)

__all__ = ["Cable", "Entity", "Place", "Rack", "Topology", "load_topology"]
