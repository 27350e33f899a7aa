"""Redfish resources: coolant connectors, pumps, leaks, power, heat, NVLink ports.

One page is one resource, or all resources of one walk (:mod:`pipeline.collectors.redfish`).
The manager's id is what the operator calls it, else the UUID that the service gives, else
the target's name: an address may move.
"""

from __future__ import annotations

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.redfish import component, coolant
from pipeline.collectors.redfish.component import Components
from pipeline.collectors.redfish.nvlink import Links
from pipeline.collectors.redfish.owners import Owners
from pipeline.collectors.redfish.tree import Tree, kind_of, parse, read_folder
from pipeline.collectors.rows import Rows, clean
from pipeline.streams import Contracts

KIND = "redfish"
MAX_PATH_SHOWN = 200  # characters in a note

# What is read beside the properties in the contracts, by stream: where it stands, and its column.
ALSO = {
    "coolant": coolant.ALSO,
    "component": component.ALSO,
    "nvlink": {
        "`UUID` of the processor or its chassis; else manager and path": "device_id",
        "the number in the port's path": "link",
        "always `gpu`": "side",
    },
}

__all__ = ["ALSO", "KIND", "manager_id", "read", "read_folder"]


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of one page."""
    reading = Reading()
    tree = parse(page.body)
    for reason in tree.refused:
        reading.reject(reason)
    for path, why in tree.missing.items():
        reading.reject("resource_not_read")
        reading.note(f"{clean(path[:MAX_PATH_SHOWN])}: {clean(why)}")
    manager = manager_id(tree) or page.target
    rows = {
        name: Rows(contracts[name], reading, page, KIND)
        for name in ("coolant", "component", "nvlink")
    }
    components = Components(tree, Owners(tree), rows["component"], reading, manager)
    links = Links(tree, rows["nvlink"], manager)
    for path, resource in sorted(tree.fresh.items(), key=_order):
        try:
            if kind_of(resource) in coolant.KINDS:
                coolant.add(tree, path, resource, rows["coolant"], manager)
            elif not links.add(path, resource):
                components.add(path, resource)
        except (TypeError, AttributeError, OverflowError, RecursionError):
            # A property of a shape that no schema allows costs its resource, not the tree.
            reading.reject("malformed_resource")
            reading.note(f"{path}: malformed")
    for name, found in rows.items():
        table = found.table()
        if table is not None:
            reading.tables[name] = table
    return reading


def _order(entry: tuple[str, object]) -> tuple[int, str]:
    # Chassis before systems, so that the name of a merged row does not depend on the walk.
    path = entry[0]
    return (0 if "/ThermalEquipment/" in path else 1 if "/Chassis/" in path else 2, path)


def manager_id(tree: Tree) -> str | None:
    """The manager's stable id; None where the resources do not tell."""
    if tree.manager_id:
        return tree.manager_id
    for kind, name in (("ServiceRoot", "UUID"), ("Manager", "ServiceEntryPointUUID")):
        for resource in tree.every(kind):
            found = resource.get(name)
            if isinstance(found, str) and found:
                return found.lower()
    return None
