"""Observations as Arrow tables with the contracts' wire columns.

The rows are those that collectors make of the hall's pages: same ids, same sources, same
targets, same NULLs. Several observations in one table stand entity by entity, in time order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.hall import constants as c
from pipeline.hall import names
from pipeline.hall.fleet import Bools, Fleet, Floats, Ints
from pipeline.hall.observe import Columns, Observation
from pipeline.streams import Contracts, Stream
from pipeline.streams.arrow import wire_schema

_NUMPY: dict[str, type] = {
    "float32": np.float32, "float64": np.float64, "bool": np.bool_, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip
Static = dict[str, pa.Array]
_Maker = Callable[[str], Static]


class RowMaker:
    """Makes tables of one hall's observations."""

    def __init__(self, fleet: Fleet, contracts: Contracts) -> None:
        self.fleet = fleet
        self.contracts = contracts
        self._static: dict[tuple[str, int], Static] = {}
        self._roles: tuple[tuple[int, bytes], Ints, list[str]] = ((-1, b""), np.zeros(0, int), [])

    def tables(self, seen: Sequence[Observation], *, links: bool = True) -> dict[str, pa.Table]:
        """Tables of all streams that have rows.

        Args:
            seen: observations of rising times.
            links: whether NVLink rows are wanted; the observations must hold them.
        """
        found = {
            "gpu": self._gpu(seen),
            "ib_port": self._ib_port(seen),
            "coolant": self._coolant(seen),
            "component": self._component(seen),
        }
        if links:
            found["nvlink"] = self.nvlink(seen)
        return found

    # --- streams ---
    def _gpu(self, seen: Sequence[Observation]) -> pa.Table:
        f = self.fleet
        columns = _stack([o.gpu for o in seen])
        mask = _stack_one([o.gpu_seen for o in seen])
        labels = self._job_labels(seen)
        return self._table("gpu", "gpu", seen, columns, mask, labels, self._gpu_static, f.gpus)

    def _job_labels(self, seen: Sequence[Observation]) -> Static:
        """Job, role and driver of every row; they change now and then."""
        f = self.fleet
        partition = np.repeat(np.arange(len(seen[0].job_ids)), seen[0].partition_gpus)
        jobs: list[str] = []
        roles: list[str] = []
        job_codes, role_codes, drivers = [], [], []
        for o in seen:
            if o.labels_version != self._roles[0]:
                values = sorted(set(o.roles))
                index = {value: number for number, value in enumerate(values)}
                codes = np.array([index[role] for role in o.roles])
                self._roles = (o.labels_version, codes, values)
            job_codes.append(_extend(jobs, o.job_ids)[partition])
            role_codes.append(_extend(roles, self._roles[2])[self._roles[1]])
            drivers.append(np.repeat(o.driver, c.GPUS_PER_TRAY).astype(np.int64))
        assert f.gpus == partition.size
        return {
            "job_id": _coded(_stack_one(job_codes), jobs),
            "job_role": _coded(_stack_one(role_codes), roles),
            "driver_version": _coded(_stack_one(drivers), list(names.DRIVERS)),
        }

    def nvlink(self, seen: Sequence[Observation]) -> pa.Table:
        """Rows of both sides of every NVLink."""
        f = self.fleet
        count = f.gpus * c.NVLINKS
        gpu_mask = _stack_one([np.repeat(o.gpu_seen, c.NVLINKS) for o in seen])
        own = self._table(
            "nvlink", "nvlink_gpu", seen, _stack([_flat(o.link) for o in seen]), gpu_mask, {},
            self._link_static, count,
        )  # fmt: skip
        far = self._table(
            "nvlink", "nvlink_switch", seen,
            _stack([_flat(o.switch_link) for o in seen]),
            _stack_one([np.ones(count, dtype=bool) for _ in seen]), {},
            self._switch_link_static, count,
        )  # fmt: skip
        return pa.concat_tables([own, far])

    def _ib_port(self, seen: Sequence[Observation]) -> pa.Table:
        f = self.fleet
        columns = _stack([o.port for o in seen])
        mask = _stack_one([o.port_seen for o in seen])
        for name in names.IB_ZERO_COLUMNS:
            columns[name] = np.zeros(mask.size)
        count = 2 * f.gpus + 2 * f.fabric_links
        return self._table("ib_port", "ib_port", seen, columns, mask, {}, self._port_static, count)

    def _coolant(self, seen: Sequence[Observation]) -> pa.Table:
        f = self.fleet
        parts = []
        for kind, picked, count in (
            ("rack_connector", [o.connector for o in seen], f.racks),
            ("primary", [_prefixed(o.cdu, "primary_") for o in seen], f.cdus),
            ("secondary", [_secondary(o.cdu) for o in seen], f.cdus),
            ("pump", [o.pump for o in seen], 2 * f.cdus),
            ("reservoir", [{"level_percent": o.cdu["level_percent"]} for o in seen], f.cdus),
            ("filter", [{"filter_pressure_kpa": o.cdu["filter_pressure_kpa"]} for o in seen],
             f.cdus),
        ):  # fmt: skip
            parts.append(
                self._table(
                    "coolant", kind, seen, _stack(picked), None, {}, self._coolant_static, count
                )
            )
        return pa.concat_tables(parts)

    def _component(self, seen: Sequence[Observation]) -> pa.Table:
        f = self.fleet
        cpu_mask = _stack_one([np.repeat(o.host_seen, c.CPUS_PER_TRAY) for o in seen])
        leaks = [{"leak": names.leak_states(o)[0].astype(float)} for o in seen]
        leak_mask = None
        parts = [
            self._table(
                "component", kind, seen, _stack(picked), mask, labels, self._component_static, count
            )
            for kind, picked, mask, labels, count in (
                ("cpu", [o.cpu for o in seen], cpu_mask, {}, f.cpus),
                ("rack", [o.rack for o in seen], None, {}, f.racks),
                ("cdu", [{"power_w": o.cdu["power_w"]} for o in seen], None, {}, f.cdus),
                ("leak", leaks, leak_mask, self._leak_labels(seen), leaks[0]["leak"].size),
                ("switch", [o.switch for o in seen], None, {}, f.leaves + f.spines),
            )
        ]
        return pa.concat_tables(parts)

    def _leak_labels(self, seen: Sequence[Observation]) -> Static:
        wet = _stack_one([names.leak_states(o)[0].astype(np.int64) for o in seen])
        return {"detector_state": _coded(wet, ["OK", "Critical"])}

    # --- one part of a table ---
    def _table(
        self,
        stream: str,
        part: str,
        seen: Sequence[Observation],
        columns: Columns,
        mask: Bools | None,
        labels: Static,
        maker: _Maker,
        count: int,
    ) -> pa.Table:
        contract = self.contracts[stream]
        times = len(seen)
        static = self._static.get((part, times))
        if static is None:
            static = _repeat(maker(part), times)
            static["cluster"] = _same(self.fleet.cluster, count * times)
            self._static = {k: v for k, v in self._static.items() if k[0] != part or k[1] == 1}
            self._static[part, times] = static
        stamps = np.array([round(o.at * 1000) for o in seen], dtype=np.int64)
        sampled = pa.array(np.tile(stamps, count)).cast(pa.timestamp("ms", tz="UTC"))
        known = {**static, **labels, "sampled_at": sampled}
        arrays = []
        for column in contract.wire_columns:
            if column.name in known:
                arrays.append(known[column.name])
            elif column.name in columns:
                arrays.append(_array(contract, column.name, columns[column.name]))
            else:
                arrays.append(_nulls(contract, column.name, count * times))
        table = pa.table(arrays, schema=wire_schema(contract))
        return table if mask is None or mask.all() else table.filter(pa.array(mask))

    # --- what never changes ---
    def _gpu_static(self, _part: str) -> Static:
        f = self.fleet
        return {
            "source": _same("dcgm", f.gpus),
            "gpu_uuid": pa.array(f.gpu_uuids),
            "gpu_instance_id": _same("", f.gpus),
            **self._gpu_place(np.arange(f.gpus)),
            "gpu_index": pa.array(f.gpu_slot.astype(np.uint16)),
            "pci_bus_id": _coded(f.gpu_slot, f.pci_bus_ids),
            "model_name": _same(names.MODEL, f.gpus),
        }

    def _gpu_place(self, gpus: Ints) -> Static:
        f = self.fleet
        tray = f.gpu_tray[gpus]
        return {
            "host": _coded(tray, f.hosts),
            "rack": _coded(f.gpu_rack[gpus], f.rack_ids),
            "tray": pa.array((tray % c.TRAYS + 1).astype(np.uint8)),
            "slot": pa.array(f.gpu_slot[gpus].astype(np.uint8)),
            "rail": pa.array(f.gpu_slot[gpus].astype(np.uint8)),
            "leaf": _coded(f.gpu_leaf[gpus], f.leaf_names),
            "cdu": _coded(f.rack_cdu[f.gpu_rack[gpus]], f.cdu_ids),
            "target": _coded(tray, [names.dcgm_target(host) for host in f.hosts]),
        }

    def _link_static(self, _part: str) -> Static:
        f = self.fleet
        gpu = np.repeat(np.arange(f.gpus), c.NVLINKS)
        link = np.tile(np.arange(c.NVLINKS), f.gpus)
        asic = f.gpu_rack[gpu] * c.ASICS_PER_RACK + link
        return {
            "source": _same("dcgm", gpu.size),
            "device_id": pa.array(f.gpu_uuids).take(pa.array(gpu)),
            "link": pa.array(link.astype(np.uint16)),
            "side": _same("gpu", gpu.size),
            **self._gpu_place(gpu),
            "gpu_index": pa.array(f.gpu_slot[gpu].astype(np.uint16)),
            "peer_id": pa.array(f.asic_guids).take(pa.array(asic)),
            "peer_link": pa.array((gpu % c.GPUS_PER_RACK + 1).astype(np.uint16)),
        }

    def _switch_link_static(self, _part: str) -> Static:
        f = self.fleet
        gpu = np.repeat(np.arange(f.gpus), c.NVLINKS)
        link = np.tile(np.arange(c.NVLINKS), f.gpus)
        rack = f.gpu_rack[gpu]
        asic = rack * c.ASICS_PER_RACK + link
        tray = rack * c.SWITCH_TRAYS + link // 2
        return {
            "source": _same("nmxt", gpu.size),
            "device_id": pa.array(f.asic_guids).take(pa.array(asic)),
            "link": pa.array((gpu % c.GPUS_PER_RACK + 1).astype(np.uint16)),
            "side": _same("switch", gpu.size),
            "host": _coded(tray, f.switch_hosts),
            "rack": _coded(rack, f.rack_ids),
            "tray": pa.array((link // 2 + 1).astype(np.uint8)),
            "slot": pa.array((link % 2).astype(np.uint8)),
            "cdu": _coded(f.rack_cdu[rack], f.cdu_ids),
            "target": _coded(tray, [names.nmxt_target(host) for host in f.switch_hosts]),
            "peer_id": pa.array(f.gpu_uuids).take(pa.array(gpu)),
            "peer_link": pa.array(link.astype(np.uint16)),
            "link_state": _same("up", gpu.size),
        }

    def _port_static(self, _part: str) -> Static:
        f = self.fleet
        n, links = f.gpus, f.fabric_links
        count = 2 * n + 2 * links
        gpu = np.arange(n)
        leaves, spines = f.leaf_names, f.spine_names
        nodes = [names.hca_name(f, number) for number in range(n)] + leaves + spines
        guids = f.hca_guids + f.leaf_guids + f.spine_guids
        node = np.concatenate([gpu, n + f.gpu_leaf, n + f.up_leaf, n + f.leaves + f.up_spine])
        peer = np.concatenate([n + f.gpu_leaf, gpu, n + f.leaves + f.up_spine, n + f.up_leaf])
        port = np.concatenate([np.ones(n, int), f.gpu_leaf_port, f.up_port, f.spine_port])
        far = np.concatenate([f.gpu_leaf_port, np.ones(n, int), f.spine_port, f.up_port])
        level = np.repeat([0, 1, 1, 2], [n, n, links, links])
        looks_up = np.repeat([0, 1, 0, 1], [n, n, links, links])
        none = np.full(count - n, -1)
        leaf = np.concatenate([f.gpu_leaf, f.gpu_leaf, f.up_leaf, np.full(links, -1)])
        rail = np.where(leaf < 0, -1, leaf // f.leaves_per_rail)
        shard = names.ib_shards(f)
        # A switch's rows come from the page that reads it, an HCA's from its rail's.
        owner = np.concatenate([leaf[: 2 * n + links], f.leaves + f.up_spine])
        return {
            "source": _same("ib_exporter", count),
            "guid": pa.array(guids).take(pa.array(node)),
            "port": pa.array(port.astype(np.uint16)),
            "host": _coded(np.concatenate([f.gpu_tray, none]), f.hosts),
            "rack": _coded(np.concatenate([f.gpu_rack, none]), f.rack_ids),
            "tray": _maybe(np.concatenate([f.gpu_tray % c.TRAYS + 1, none]), np.uint8),
            "slot": _maybe(np.concatenate([f.gpu_slot, none]), np.uint8),
            "rail": _maybe(rail, np.uint8),
            "leaf": _coded(leaf, leaves),
            "cdu": _coded(np.concatenate([f.rack_cdu[f.gpu_rack], none]), f.cdu_ids),
            "target": _coded(np.array([shard[int(o)] for o in owner]), names.ib_targets(f)),
            "side": _coded((level > 0).astype(int), ["hca", "switch"]),
            "level": _coded(level, ["hca", "leaf", "spine"]),
            "direction": _coded(looks_up, ["up", "down"]),
            "node_name": _coded(node, nodes),
            "peer_guid": pa.array(guids).take(pa.array(peer)),
            "peer_port": pa.array(far.astype(np.uint16)),
            "peer_name": _coded(peer, nodes),
            "lid": pa.array((node + 1).astype(np.uint32)),
            "link_layer": _same("InfiniBand", count),
        }

    def _coolant_static(self, part: str) -> Static:
        f = self.fleet
        if part == "rack_connector":
            return {
                **self._managed("rack", f.rack_ids, np.arange(f.racks)),
                "component_id": pa.array([names.rack_connector_path(r) for r in f.rack_ids]),
                "component_type": _same("rack_connector", f.racks),
                "name": _same(names.RACK_CONNECTOR_NAME, f.racks),
                "rated_flow_lpm": pa.array(np.full(f.racks, c.FLOW_MAX_LPM, np.float32)),
                **_healthy(f.racks),
            }
        each = 2 if part == "pump" else 1
        cdu = np.repeat(np.arange(f.cdus), each)
        number = np.tile(np.arange(each), f.cdus)
        kind = {"primary": "primary_connector", "secondary": "secondary_connector"}.get(part, part)
        found = {
            **self._managed("cdu", f.cdu_ids, cdu),
            "component_id": pa.array([names.cdu_part_path(part, int(n) + 1) for n in number]),
            "component_type": _same(kind, cdu.size),
            "name": pa.array([names.cdu_part_name(part, int(n) + 1) for n in number])
            .dictionary_encode(),
            **_healthy(cdu.size),
        }  # fmt: skip
        if part == "secondary":
            found["delta_pressure_setpoint_kpa"] = pa.array(
                np.full(f.cdus, c.DP_SET_KPA, np.float32)
            )
        return found

    def _managed(self, kind: str, ids: list[str], numbers: Ints) -> Static:
        f = self.fleet
        found = {
            "source": _same("redfish", numbers.size),
            "manager_id": pa.array(ids).take(pa.array(numbers)),
            "target": _coded(numbers, [names.redfish_target(name) for name in ids]),
        }
        if kind == "rack":
            found["rack"] = _coded(numbers, ids)
            found["cdu"] = _coded(f.rack_cdu[numbers], f.cdu_ids)
        else:
            found["cdu"] = _coded(numbers, ids)
        return found

    def _component_static(self, part: str) -> Static:
        f = self.fleet
        if part == "cpu":
            tray = np.repeat(np.arange(f.trays), c.CPUS_PER_TRAY)
            socket = np.tile(np.arange(c.CPUS_PER_TRAY), f.trays)
            rack = tray // c.TRAYS
            return {
                "source": _same("dcgm", f.cpus),
                "manager_id": pa.array(f.hosts).take(pa.array(tray)),
                "component_id": pa.array(["cpu0", "cpu1"]).take(pa.array(socket)),
                "entity_type": _same("grace_cpu", f.cpus),
                "host": _coded(tray, f.hosts),
                "rack": _coded(rack, f.rack_ids),
                "tray": pa.array((tray % c.TRAYS + 1).astype(np.uint8)),
                "slot": pa.array(socket.astype(np.uint8)),
                "cdu": _coded(f.rack_cdu[rack], f.cdu_ids),
                "target": _coded(tray, [names.dcgm_target(host) for host in f.hosts]),
                "name": _coded(socket, ["cpu0", "cpu1"]),
            }
        if part == "rack":
            return {
                **self._managed("rack", f.rack_ids, np.arange(f.racks)),
                "component_id": pa.array([names.rack_path(rack) for rack in f.rack_ids]),
                "entity_type": _same("rack", f.racks),
            }
        if part == "cdu":
            return {
                **self._managed("cdu", f.cdu_ids, np.arange(f.cdus)),
                "component_id": _plain(names.CDU_PATH, f.cdus),
                "entity_type": _same("cdu", f.cdus),
                "name": _coded(np.arange(f.cdus), [names.cdu_name(cdu) for cdu in f.cdu_ids]),
                **_healthy(f.cdus),
                "health_rollup": _same("OK", f.cdus),
            }
        if part == "leak":
            per_rack = c.TRAYS * c.LEAK_DETECTORS_PER_TRAY
            rack = np.repeat(np.arange(f.racks), per_rack)
            number = np.tile(np.arange(per_rack), f.racks)
            return {
                **self._managed("rack", f.rack_ids, rack),
                "component_id": pa.array(
                    [
                        names.leak_path(f.rack_ids[r], int(n))
                        for r, n in zip(rack, number, strict=True)
                    ]
                ),
                "entity_type": _same("leak_detector", rack.size),
                "name": _coded(number, [names.leak_name(n) for n in range(per_rack)]),
            }
        leaf = np.concatenate([np.arange(f.leaves), np.full(f.spines, -1)])
        switches = np.arange(f.leaves + f.spines)
        shard = names.ib_shards(f)
        return {
            "source": _same("ib_exporter", switches.size),
            "manager_id": pa.array(f.leaf_guids + f.spine_guids),
            "component_id": _plain("chassis", switches.size),
            "entity_type": _same("switch_chassis", switches.size),
            "leaf": _coded(leaf, f.leaf_names),
            "rail": _maybe(np.where(leaf < 0, -1, leaf // f.leaves_per_rail), np.uint8),
            "target": _coded(np.array([shard[int(s)] for s in switches]), names.ib_targets(f)),
            "name": _coded(switches, f.leaf_names + f.spine_names),
        }


def at_time(seconds: float) -> datetime:
    """Seconds since 1970 as a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


def _stack(columns: Sequence[Columns]) -> Columns:
    return {name: _stack_one([part[name] for part in columns]) for name in columns[0]}


_T = TypeVar("_T", bound=np.generic)


def _stack_one(arrays: Sequence[NDArray[_T]]) -> NDArray[_T]:
    if len(arrays) == 1:
        return arrays[0]
    return np.stack(arrays, axis=1).reshape(-1)


def _flat(columns: Columns) -> Columns:
    return {name: values.reshape(-1) for name, values in columns.items()}


def _prefixed(columns: Columns, prefix: str) -> Columns:
    return {
        name.removeprefix(prefix): values
        for name, values in columns.items()
        if name.startswith(prefix)
    }


def _secondary(columns: Columns) -> Columns:
    return {
        **_prefixed(columns, "secondary_"),
        "supply_temp_setpoint_c": columns["supply_temp_setpoint_c"],
    }


def _extend(known: list[str], values: list[str]) -> Ints:
    """Codes of ``values`` in ``known``, which grows by what it lacks."""
    for value in values:
        if value not in known:
            known.append(value)
    return np.array([known.index(value) for value in values])


def _array(stream: Stream, name: str, values: Floats) -> pa.Array:
    column = stream.column(name)
    if column.none_seen is not None:
        values = np.where(values <= column.none_seen * 1.01, 0.0, values)
    kind = _NUMPY[column.type]
    if column.type.startswith("float"):
        return pa.array(values.astype(kind), from_pandas=True)
    return pa.array(values.astype(kind))


_NULLS: dict[tuple[str, int], pa.Array] = {}


def _nulls(stream: Stream, name: str, count: int) -> pa.Array:
    kind = wire_schema_type(stream, name)
    key = (str(kind), count)
    if key not in _NULLS:
        if len(_NULLS) > 200:
            _NULLS.clear()
        _NULLS[key] = pa.nulls(count, kind)
    return _NULLS[key]


_TYPES: dict[tuple[str, str], pa.DataType] = {}


def wire_schema_type(stream: Stream, name: str) -> pa.DataType:
    """Arrow type of a column, remembered: schemas are asked for at every sample."""
    if (stream.name, name) not in _TYPES:
        for field in wire_schema(stream):
            _TYPES[stream.name, field.name] = field.type
    return _TYPES[stream.name, name]


def _coded(codes: Ints, values: list[str]) -> pa.Array:
    """A label column; negative codes and empty strings are NULL."""
    codes = np.asarray(codes)
    empty = np.array([value == "" for value in values])
    mask = (codes < 0) | empty[np.maximum(codes, 0)]
    if not mask.any():
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), values)
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, values)


def _same(value: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [value])


def _plain(value: str, count: int) -> pa.Array:
    return pa.array([value] * count)


def _maybe(values: Ints, kind: type) -> pa.Array:
    return pa.array(np.maximum(values, 0).astype(kind), mask=values < 0)


def _healthy(count: int) -> Static:
    return {"state": _same("Enabled", count), "health": _same("OK", count)}


def _repeat(static: Static, times: int) -> Static:
    if times == 1:
        return dict(static)
    found = {}
    for name, array in static.items():
        index = pa.array(np.repeat(np.arange(len(array)), times))
        found[name] = array.take(index)
    return found
