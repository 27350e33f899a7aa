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
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.prometheus_text import NO_TIME, Exposition, parse
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
LINK_STATES = {0: "down", 1: "up", 2: "sleep"}
_LANE = re.compile(r"_L(\d{1,3})(?=_|$)")
_LAST_NUMBER = re.compile(r"(\d{1,5})$")

# Row of an entity at a time; -1 for what is not stored.
RowOf = Callable[[int | None], int]


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
        text = parse(self.page.body, self.page.content_type)
        for reason, count in text.rejected.items():
            self.reading.reject(reason, "", count)
        entities = [self._entity(labels) for labels in text.labels]
        for stream, grid in self.grids.items():
            self._fill(text, stream, grid, entities)
        self._per_lane(text, entities)
        self._link_states(text, entities)
        for stream, grid in self.grids.items():
            table = grid.table()
            if table is not None:
                self.reading.tables[stream] = table
        return self.reading

    # -- entities

    def _entity(self, labels: dict[str, str]) -> tuple[str, RowOf]:
        """The stream that a label set belongs to, and how to get its row."""
        if "nvlink" in labels:
            return "nvlink", lambda time_ms: self._link_row(labels, time_ms)
        if "cpucore" in labels:
            return "", _no_row
        if any(name in labels for name in _UUID_LABELS) or "gpu" in labels:
            return "gpu", lambda time_ms: self._gpu_row(labels, time_ms)
        if "nvswitch" in labels:
            name = _prefixed("nvswitch", labels["nvswitch"])
            return "component", lambda time_ms: self._part_row(labels, "nvswitch", name, time_ms)
        if "cpu" in labels:
            name = _prefixed("cpu", labels["cpu"])
            return "component", lambda time_ms: self._part_row(labels, "grace_cpu", name, time_ms)
        return "", _no_row

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

    def _fill(
        self, text: Exposition, stream: str, grid: Grid, entities: list[tuple[str, RowOf]]
    ) -> None:
        known = grid.fields.by_name
        field_of_name = np.array([known.get(name, -1) for name in text.names], dtype=np.int64)
        of_stream = np.array([entity[0] == stream for entity in entities], dtype=bool)
        if not of_stream.any():
            return
        chosen = np.flatnonzero(of_stream[text.labels_of])
        row_of = self._rows(text, chosen, entities)
        field_of = field_of_name[text.name_of[chosen]]
        wanted = (field_of >= 0) & (row_of >= 0)
        if not wanted.all():
            chosen, row_of, field_of = chosen[wanted], row_of[wanted], field_of[wanted]
        grid.extend(row_of, field_of, text.values[chosen], text.raw, chosen)

    def _rows(
        self, text: Exposition, chosen: NDArray[np.int64], entities: list[tuple[str, RowOf]]
    ) -> NDArray[np.int64]:
        """Row of each chosen sample: one per label set, and per time where lines have one."""
        label_of = text.labels_of[chosen]
        if text.times_ms is None:
            rows = np.full(len(entities), -1, dtype=np.int64)
            for number in np.unique(label_of).tolist():
                rows[number] = entities[number][1](None)
            return rows[label_of]
        made: dict[tuple[int, int], int] = {}
        found = []
        for pair in zip(label_of.tolist(), text.times_ms[chosen].tolist(), strict=True):
            if pair not in made:
                made[pair] = self._timed_row(entities[pair[0]][1], pair[1])
            found.append(made[pair])
        return np.array(found, dtype=np.int64)

    def _timed_row(self, row_of: RowOf, time_ms: int) -> int:
        if time_ms == NO_TIME:
            return row_of(None)
        return row_of(time_ms) if self.grids["gpu"].time_ok(time_ms) else -1

    def _per_lane(self, text: Exposition, entities: list[tuple[str, RowOf]]) -> None:
        """Fields such as NVLINK_L3_TX_BYTES: one link each, printed as fields of the GPU."""
        grid = self.grids["nvlink"]
        lanes = {
            index: lane
            for index, name in enumerate(text.names)
            if (lane := _lane(name, grid.fields)) is not None
        }
        if not lanes:
            return
        for number, name in enumerate(text.name_of.tolist()):
            if name not in lanes:
                continue
            label = int(text.labels_of[number])
            labels = text.labels[label]
            if entities[label][0] != "gpu" or labels.get("GPU_I_ID"):
                continue
            link, field = lanes[name]
            time = NO_TIME if text.times_ms is None else int(text.times_ms[number])

            def row_of(
                time_ms: int | None, labels: dict[str, str] = labels, link: int = link
            ) -> int:
                return self._link_row({**labels, "nvlink": str(link)}, time_ms)

            row = self._timed_row(row_of, time)
            if row >= 0:
                grid.put(row, field, text.raw[number])

    def _link_states(self, text: Exposition, entities: list[tuple[str, RowOf]]) -> None:
        grid = self.grids["nvlink"]
        states = {index for index, name in enumerate(text.names) if name in grid.fields.labels}
        if not states:
            return
        for number in np.flatnonzero(np.isin(text.name_of, list(states))).tolist():
            stream, row_of = entities[text.labels_of[number]]
            if stream != "nvlink":
                continue
            state = LINK_STATES.get(text.values[number])
            if state is None:
                self.reading.reject("out_of_range", "link_state")
                continue
            time = NO_TIME if text.times_ms is None else int(text.times_ms[number])
            row = self._timed_row(row_of, time)
            if row >= 0:
                grid.label(row, grid.fields.labels[text.names[text.name_of[number]]], state)


def _no_row(_time_ms: int | None) -> int:
    return -1


def _prefixed(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def _lane(name: str, known: Fields) -> tuple[int, int] | None:
    """Link and field of a name that has the link in it."""
    found = _LANE.search(name)
    if found is None:
        return None
    field = known.templates.get(name[: found.start()] + "_L{link}" + name[found.end() :])
    return None if field is None else (int(found.group(1)), field)
