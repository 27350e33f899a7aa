"""dcgm-exporter pages of every version.

Line shapes that are read (label order and spacing do not matter):

========== ===================================================================== ==========
entity     labels                                                                stream
========== ===================================================================== ==========
GPU        ``gpu`` ``UUID`` ``pci_bus_id`` ``device`` ``modelName`` ``Hostname`` gpu
           ``DCGM_FI_DRIVER_VERSION`` ``hpc_job`` ``job_role`` ``namespace``
           ``pod`` ``container``
MIG        as GPU, with ``GPU_I_ID`` and ``GPU_I_PROFILE``                       gpu
GPU 1.x    ``gpu`` ``uuid``, lower-case names (``dcgm_gpu_temp``)                gpu
link       ``nvlink`` ``gpu`` ``gpu_uuid`` ``pci_bus_id`` ``device``             nvlink,
           ``model_name`` ``hostname`` (as exporters from 4.2 print them)        side gpu
link       ``nvlink`` ``nvswitch`` ``Hostname`` or ``hostname``                  nvlink,
                                                                                 side switch
switch     ``nvswitch`` ``Hostname``                                             component
CPU        ``cpu`` ``Hostname``                                                  component
CPU core   ``cpucore`` ``cpu`` ``Hostname``                                      not stored
========== ===================================================================== ==========

The identity of a GPU is its UUID; without one it is its PCI address on its host, and only
without that its index on its host, which is marked as such and moves when a GPU is lost. A
device value copied to several pods (time-slicing) is one value of one device: the pods differ,
so none stands on the row.
"""

from __future__ import annotations

import re
from functools import partial

from pipeline.collectors.fill import (
    RowOf,
    fill,
    parse_into,
    row_at,
    sample_time,
    samples_named,
)
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.prometheus_text import Exposition
from pipeline.collectors.values import Fields, fields
from pipeline.streams import Contracts

KIND = "dcgm"
SOURCE = "dcgm"

_NULL = "<<<NULL>>>"  # DCGM's blank for strings
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
# Label of the exporter: column of the stream gpu.
_GPU_LABELS = {
    "pci_bus_id": "pci_bus_id",
    "modelName": "model_name",
    "model_name": "model_name",
    "GPU_I_PROFILE": "gpu_instance_profile",
    "hpc_job": "job_id",
    "job_role": "job_role",
    "namespace": "namespace",
    "exported_namespace": "namespace",
    "pod_namespace": "namespace",
    "pod": "pod",
    "exported_pod": "pod",
    "pod_name": "pod",
    "container": "container",
    "exported_container": "container",
    "container_name": "container",
}
# What is read beside the names in the contracts, by stream: where it stands, and its column.
ALSO = {
    "gpu": {
        "`UUID`, `uuid`, `gpu_uuid`; else the PCI address, else the index": "gpu_uuid",
        "`GPU_I_ID`": "gpu_instance_id",
        "`gpu`": "gpu_index",
        **{
            ", ".join(f"`{label}`" for label, name in _GPU_LABELS.items() if name == column): column
            for column in dict.fromkeys(_GPU_LABELS.values())
        },
        "`Hostname`, `hostname`, unless the target names its host": "host",
    },
    "nvlink": {
        "`gpu_uuid`, `UUID`; of a switch `Hostname` and `nvswitch`": "device_id",
        "`nvlink`": "link",
        "`gpu`, or `nvswitch` alone": "side",
        "`gpu`": "gpu_index",
        "`Hostname`, `hostname`, unless the target names its host": "host",
    },
    "component": {
        "the host": "manager_id",
        "`nvswitch`, `cpu`": "component_id",
        "`nvswitch` or `cpu`": "entity_type",
        "`nvswitch`, `cpu`, with its kind": "name",
        "`Hostname`, `hostname`, unless the target names its host": "host",
    },
}
LINK_STATES = {0.0: "down", 1.0: "up", 2.0: "sleep"}
_LANE = re.compile(r"_L(\d{1,3})(?=_|$)")
_LAST_NUMBER = re.compile(r"(\d{1,5})$")

# The stream that a label set belongs to, and how to get its row; none for what is not stored.
Entity = tuple[str, RowOf | None]


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the streams gpu, nvlink and component of one page."""
    return _Dcgm(page, contracts).read()


class _Dcgm:
    def __init__(self, page: Page, contracts: Contracts) -> None:
        self.page = page
        self.reading = Reading()
        self.grids = {
            stream: Grid(
                fields(contracts, stream, SOURCE), page, self.reading,
                source=SOURCE, dcgm_blanks=True,
            )
            for stream in ("gpu", "nvlink", "component")
        }  # fmt: skip

    def read(self) -> Reading:
        text = parse_into(self.reading, self.page.body, self.page.content_type)
        entities = [self._entity(labels) for labels in text.labels]
        for stream, grid in self.grids.items():
            rows = [row if entity == stream else None for entity, row in entities]
            fill(grid, text, grid.fields.by_name, rows)
        self._per_lane(text, entities)
        self._link_states(text, entities)
        for stream, grid in self.grids.items():
            table = grid.table()
            if table is not None:
                self.reading.tables[stream] = table
        return self.reading

    # -- entities

    def _entity(self, labels: dict[str, str]) -> Entity:
        if "nvlink" in labels:
            return "nvlink", partial(self._link_row, labels)
        if "cpucore" in labels:
            return "", None
        if any(name in labels for name in _UUID_LABELS) or "gpu" in labels:
            return "gpu", partial(self._gpu_row, labels)
        if "nvswitch" in labels:
            name = _prefixed("nvswitch", labels["nvswitch"])
            return "component", partial(self._part_row, labels, "nvswitch", name)
        if "cpu" in labels:
            name = _prefixed("cpu", labels["cpu"])
            return "component", partial(self._part_row, labels, "grace_cpu", name)
        return "", None

    def _host(self, labels: dict[str, str]) -> str:
        host = self.page.host or labels.get("Hostname") or labels.get("hostname")
        return host or self.page.target

    def _gpu_id(self, labels: dict[str, str]) -> str:
        for name in _UUID_LABELS:
            if labels.get(name) not in (None, "", _NULL):
                return labels[name]
        if labels.get("pci_bus_id") not in (None, "", _NULL):
            self.reading.note("GPU without UUID: its PCI address on its host stands for it")
            return f"pci:{self._host(labels)}:{labels['pci_bus_id']}"
        self.reading.note("GPU without UUID: its index on its host stands for it, which may move")
        return f"index:{self._host(labels)}:{labels.get('gpu', '')}"

    def _gpu_row(self, labels: dict[str, str], time_ms: int | None) -> int:
        grid = self.grids["gpu"]
        row = grid.row((self._gpu_id(labels), labels.get("GPU_I_ID", "")), time_ms)
        grid.number(row, "gpu_index", labels.get("gpu"))
        for name, value in labels.items():
            if value == _NULL:
                continue
            column = _GPU_LABELS.get(name) or grid.fields.labels.get(name)
            if column is not None:
                grid.label(row, column, value)
            elif name in grid.fields.by_name:  # a field that the exporter prints as a label
                grid.number(row, grid.fields.columns[grid.fields.by_name[name]].name, value)
        self._label_host(grid, row, labels)
        return row

    def _link_row(self, labels: dict[str, str], time_ms: int | None) -> int:
        number = _LAST_NUMBER.search(labels["nvlink"])
        if number is None or int(number.group(1)) > 65_535:
            self.reading.reject("bad_label", "link")
            return -1
        link = int(number.group(1))
        grid = self.grids["nvlink"]
        if any(name in labels for name in _UUID_LABELS) or "gpu" in labels:
            row = grid.row((self._gpu_id(labels), link, "gpu"), time_ms)
            grid.number(row, "gpu_index", labels.get("gpu"))
        elif "nvswitch" in labels:
            device = f"{self._host(labels)}/{_prefixed('nvswitch', labels['nvswitch'])}"
            row = grid.row((device, link, "switch"), time_ms)
        else:
            self.reading.reject("no_identity", "device_id")
            return -1
        self._label_host(grid, row, labels)
        return row

    def _part_row(
        self, labels: dict[str, str], entity_type: str, name: str, time_ms: int | None
    ) -> int:
        grid = self.grids["component"]
        row = grid.row((self._host(labels), name), time_ms)
        grid.label(row, "entity_type", entity_type)
        grid.label(row, "name", name)
        self._label_host(grid, row, labels)
        return row

    def _label_host(self, grid: Grid, row: int, labels: dict[str, str]) -> None:
        if self.page.host is None:
            grid.label(row, "host", labels.get("Hostname") or labels.get("hostname"))

    # -- readings

    def _per_lane(self, text: Exposition, entities: list[Entity]) -> None:
        """Fields such as NVLINK_L3_TX_BYTES: one link each, printed as fields of the GPU."""
        grid = self.grids["nvlink"]
        lanes = {
            name: lane for name in text.names if (lane := _lane(name, grid.fields)) is not None
        }
        for number in samples_named(text, set(lanes)):
            label = int(text.labels_of[number])
            labels = text.labels[label]
            if entities[label][0] != "gpu" or labels.get("GPU_I_ID"):
                continue
            link, field = lanes[text.names[text.name_of[number]]]
            row_of = partial(self._link_row, {**labels, "nvlink": str(link)})
            row = row_at(grid, row_of, sample_time(text, number))
            if row >= 0:
                grid.put(row, field, text.raw[number])

    def _link_states(self, text: Exposition, entities: list[Entity]) -> None:
        grid = self.grids["nvlink"]
        for number in samples_named(text, set(grid.fields.labels)):
            stream, row_of = entities[text.labels_of[number]]
            if stream != "nvlink" or row_of is None:
                continue
            state = LINK_STATES.get(float(text.values[number]))
            if state is None:
                self.reading.reject("out_of_range", "link_state")
                continue
            row = row_at(grid, row_of, sample_time(text, number))
            if row >= 0:
                grid.label(row, grid.fields.labels[text.names[text.name_of[number]]], state)


def _prefixed(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def _lane(name: str, known: Fields) -> tuple[int, int] | None:
    """Link and field of a name that has the link in it."""
    found = _LANE.search(name)
    if found is None:
        return None
    field = known.templates.get(name[: found.start()] + "_L{link}" + name[found.end() :])
    return None if field is None else (int(found.group(1)), field)
