"""NVLink ports of GPUs as rows of ``nvlink``, side ``gpu``."""

from __future__ import annotations

import re

from pipeline.collectors.redfish.tree import Resource, Tree, kind_of, link, links
from pipeline.collectors.redfish.values import find, reading
from pipeline.collectors.rows import Rows

_PORT = re.compile(r"^(?P<device>.+/Processors/GPU_[^/]+)/Ports/NVLink_(?P<link>\d{1,4})")
_STATES = {
    "LinkUp": "up", "LinkDown": "down", "NoLink": "no_link", "Starting": "training",
    "Training": "training",
}  # fmt: skip


class Links:
    """Makes the rows of ``nvlink`` of one tree."""

    def __init__(self, tree: Tree, rows: Rows, manager: str) -> None:
        self._rows = rows
        self._manager = manager
        self._uuids = _gpu_uuids(tree)

    def add(self, path: str, resource: Resource) -> bool:
        """Add what a port or its metrics say; False when it is no NVLink port of a GPU."""
        match = _PORT.match(path)
        if match is None or kind_of(resource) not in ("Port", "PortMetrics"):
            return False
        device = match["device"]
        row = self._rows.row(
            device_id=self._uuids.get(device, f"{self._manager}:{device}"),
            link=int(match["link"]),
            side="gpu",
        )
        for column, source in self._rows.stream.by_source("redfish"):
            for name in source.names:
                value = find(resource, name)
                if column.name == "link_state" and isinstance(value, str):
                    value = _STATES.get(value, value.lower())
                self._rows.put(row, column.name, reading(value), source.scale)
        return True


def _gpu_uuids(tree: Tree) -> dict[str, str]:
    """GPU UUIDs by path of the processor: of the processor itself, or of its chassis."""
    found: dict[str, str] = {}
    for chassis in tree.every("Chassis"):
        about = chassis.get("Links")
        processors = links(about.get("Processors")) if isinstance(about, dict) else []
        if len(processors) == 1 and isinstance(chassis.get("UUID"), str):
            found[processors[0]] = f"GPU-{chassis['UUID'].lower()}"
    for processor in tree.every("Processor"):
        if isinstance(processor.get("UUID"), str) and processor.get("ProcessorType") == "GPU":
            found[link(processor)] = f"GPU-{processor['UUID'].lower()}"
    return found
