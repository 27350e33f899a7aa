"""Columns that never change: who stands where, wired to what, read by which target."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.hall import constants as c
from pipeline.hall import names
from pipeline.hall.fleet import Fleet, Ints

Static = dict[str, pa.Array]


class Statics:
    """Static columns of one fleet's rows, by part of a stream."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def of(self, part: str) -> Static:
        """Static columns of a part, one value per entity."""
        f = self._fleet
        makers = {
            "gpu": self._gpu,
            "nvlink_gpu": self._link,
            "nvlink_switch": self._switch_link,
            "ib_port": self._port,
            "ufm_port": self._ufm_port,
        }
        if part in makers:
            found = makers[part]()
        elif part in ("cpu", "rack", "cdu", "leak", "switch"):
            found = self._component(part)
        else:
            found = self._coolant(part)
        count = len(next(iter(found.values())))
        return {"cluster": same(f.cluster, count), **found}

    def _gpu(self) -> Static:
        f = self._fleet
        return {
            "source": same("dcgm", f.gpus),
            "gpu_uuid": pa.array(f.gpu_uuids),
            "gpu_instance_id": same("", f.gpus),
            **self._gpu_place(np.arange(f.gpus)),
            "gpu_index": pa.array(f.gpu_slot.astype(np.uint16)),
            "pci_bus_id": coded(f.gpu_slot, f.pci_bus_ids),
            "model_name": same(names.MODEL, f.gpus),
        }

    def _gpu_place(self, gpus: Ints) -> Static:
        f = self._fleet
        tray = f.gpu_tray[gpus]
        return {
            "host": coded(tray, f.hosts),
            "rack": coded(f.gpu_rack[gpus], f.rack_ids),
            "tray": pa.array((tray % c.TRAYS + 1).astype(np.uint8)),
            "slot": pa.array(f.gpu_slot[gpus].astype(np.uint8)),
            "rail": pa.array(f.gpu_slot[gpus].astype(np.uint8)),
            "leaf": coded(f.gpu_leaf[gpus], f.leaf_names),
            "cdu": coded(f.rack_cdu[f.gpu_rack[gpus]], f.cdu_ids),
            "target": coded(tray, [names.dcgm_target(host) for host in f.hosts]),
        }

    def _link(self) -> Static:
        f = self._fleet
        gpu = np.repeat(np.arange(f.gpus), c.NVLINKS)
        link = np.tile(np.arange(c.NVLINKS), f.gpus)
        asic = f.gpu_rack[gpu] * c.ASICS_PER_RACK + link
        return {
            "source": same("dcgm", gpu.size),
            "device_id": pa.array(f.gpu_uuids).take(pa.array(gpu)),
            "link": pa.array(link.astype(np.uint16)),
            "side": same("gpu", gpu.size),
            **self._gpu_place(gpu),
            "gpu_index": pa.array(f.gpu_slot[gpu].astype(np.uint16)),
            "peer_id": pa.array(f.asic_guids).take(pa.array(asic)),
            "peer_link": pa.array((gpu % c.GPUS_PER_RACK + 1).astype(np.uint16)),
        }

    def _switch_link(self) -> Static:
        f = self._fleet
        gpu = np.repeat(np.arange(f.gpus), c.NVLINKS)
        link = np.tile(np.arange(c.NVLINKS), f.gpus)
        rack = f.gpu_rack[gpu]
        asic = rack * c.ASICS_PER_RACK + link
        tray = rack * c.SWITCH_TRAYS + link // 2
        return {
            "source": same("nmxt", gpu.size),
            "device_id": pa.array(f.asic_guids).take(pa.array(asic)),
            "link": pa.array((gpu % c.GPUS_PER_RACK + 1).astype(np.uint16)),
            "side": same("switch", gpu.size),
            "host": coded(tray, f.switch_hosts),
            "rack": coded(rack, f.rack_ids),
            "tray": pa.array((link // 2 + 1).astype(np.uint8)),
            "slot": pa.array((link % 2).astype(np.uint8)),
            "cdu": coded(f.rack_cdu[rack], f.cdu_ids),
            "target": coded(tray, [names.nmxt_target(host) for host in f.switch_hosts]),
            "peer_id": pa.array(f.gpu_uuids).take(pa.array(gpu)),
            "peer_link": pa.array(link.astype(np.uint16)),
            "link_state": same("up", gpu.size),
        }

    def _port(self) -> Static:
        f = self._fleet
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
            "source": same("ib_exporter", count),
            "guid": pa.array(guids).take(pa.array(node)),
            "port": pa.array(port.astype(np.uint16)),
            "host": coded(np.concatenate([f.gpu_tray, none]), f.hosts),
            "rack": coded(np.concatenate([f.gpu_rack, none]), f.rack_ids),
            "tray": maybe(np.concatenate([f.gpu_tray % c.TRAYS + 1, none]), np.uint8),
            "slot": maybe(np.concatenate([f.gpu_slot, none]), np.uint8),
            "rail": maybe(rail, np.uint8),
            "leaf": coded(leaf, leaves),
            "cdu": coded(np.concatenate([f.rack_cdu[f.gpu_rack], none]), f.cdu_ids),
            "target": coded(np.array([shard[int(o)] for o in owner]), names.ib_targets(f)),
            "side": coded((level > 0).astype(int), ["hca", "switch"]),
            "level": coded(level, ["hca", "leaf", "spine"]),
            "direction": coded(looks_up, ["up", "down"]),
            "node_name": coded(node, nodes),
            "peer_guid": pa.array(guids).take(pa.array(peer)),
            "peer_port": pa.array(far.astype(np.uint16)),
            "peer_name": coded(peer, nodes),
            "lid": pa.array((node + 1).astype(np.uint32)),
            "link_layer": same("InfiniBand", count),
        }

    def _ufm_port(self) -> Static:
        """As UFM gives it: an HCA is known by its description, and no port has a LID."""
        f = self._fleet
        found = self._port()
        del found["lid"]
        others = np.full(len(found["port"]) - f.gpus, -1)
        targets = found["target"]
        return {
            **found,
            "source": same("ufm", len(targets)),
            "target": pa.DictionaryArray.from_arrays(targets.indices, names.ufm_targets(f)),
            "side": coded(np.concatenate([np.zeros(f.gpus, int), others]), ["hca"]),
            "device": coded(
                np.concatenate([f.gpu_slot, others]), [f"mlx5_{n}" for n in range(c.RAILS)]
            ),
        }

    def _coolant(self, part: str) -> Static:
        f = self._fleet
        if part == "rack_connector":
            return {
                **self._managed("rack", f.rack_ids, np.arange(f.racks)),
                "component_id": pa.array([names.rack_connector_path(r) for r in f.rack_ids]),
                "component_type": same("rack_connector", f.racks),
                "name": same(names.RACK_CONNECTOR_NAME, f.racks),
                "rated_flow_lpm": pa.array(np.full(f.racks, c.FLOW_MAX_LPM, np.float32)),
                **healthy(f.racks),
            }
        each = 2 if part == "pump" else 1
        cdu = np.repeat(np.arange(f.cdus), each)
        number = np.tile(np.arange(each), f.cdus)
        kind = {"primary": "primary_connector", "secondary": "secondary_connector"}.get(part, part)
        found = {
            **self._managed("cdu", f.cdu_ids, cdu),
            "component_id": pa.array([names.cdu_part_path(part, int(n) + 1) for n in number]),
            "component_type": same(kind, cdu.size),
            "name": pa.array([names.cdu_part_name(part, int(n) + 1) for n in number])
            .dictionary_encode(),
            **healthy(cdu.size),
        }  # fmt: skip
        if part == "secondary":
            found["delta_pressure_setpoint_kpa"] = pa.array(
                np.full(f.cdus, c.DP_SET_KPA, np.float32)
            )
        return found

    def _managed(self, kind: str, ids: list[str], numbers: Ints) -> Static:
        f = self._fleet
        found = {
            "source": same("redfish", numbers.size),
            "manager_id": pa.array(ids).take(pa.array(numbers)),
            "target": coded(numbers, [names.redfish_target(name) for name in ids]),
        }
        if kind == "rack":
            found["rack"] = coded(numbers, ids)
            found["cdu"] = coded(f.rack_cdu[numbers], f.cdu_ids)
        else:
            found["cdu"] = coded(numbers, ids)
        return found

    def _component(self, part: str) -> Static:
        f = self._fleet
        if part == "cpu":
            tray = np.repeat(np.arange(f.trays), c.CPUS_PER_TRAY)
            socket = np.tile(np.arange(c.CPUS_PER_TRAY), f.trays)
            rack = tray // c.TRAYS
            return {
                "source": same("dcgm", f.cpus),
                "manager_id": pa.array(f.hosts).take(pa.array(tray)),
                "component_id": pa.array(["cpu0", "cpu1"]).take(pa.array(socket)),
                "entity_type": same("grace_cpu", f.cpus),
                "host": coded(tray, f.hosts),
                "rack": coded(rack, f.rack_ids),
                "tray": pa.array((tray % c.TRAYS + 1).astype(np.uint8)),
                "slot": pa.array(socket.astype(np.uint8)),
                "cdu": coded(f.rack_cdu[rack], f.cdu_ids),
                "target": coded(tray, [names.dcgm_target(host) for host in f.hosts]),
                "name": coded(socket, ["cpu0", "cpu1"]),
            }
        if part == "rack":
            return {
                **self._managed("rack", f.rack_ids, np.arange(f.racks)),
                "component_id": pa.array([names.rack_path(rack) for rack in f.rack_ids]),
                "entity_type": same("rack", f.racks),
            }
        if part == "cdu":
            return {
                **self._managed("cdu", f.cdu_ids, np.arange(f.cdus)),
                "component_id": plain(names.CDU_PATH, f.cdus),
                "entity_type": same("cdu", f.cdus),
                "name": coded(np.arange(f.cdus), [names.cdu_name(cdu) for cdu in f.cdu_ids]),
                **healthy(f.cdus),
                "health_rollup": same("OK", f.cdus),
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
                "entity_type": same("leak_detector", rack.size),
                "name": coded(number, [names.leak_name(n) for n in range(per_rack)]),
            }
        leaf = np.concatenate([np.arange(f.leaves), np.full(f.spines, -1)])
        switches = np.arange(f.leaves + f.spines)
        shard = names.ib_shards(f)
        return {
            "source": same("ib_exporter", switches.size),
            "manager_id": pa.array(f.leaf_guids + f.spine_guids),
            "component_id": plain("chassis", switches.size),
            "entity_type": same("switch_chassis", switches.size),
            "leaf": coded(leaf, f.leaf_names),
            "rail": maybe(np.where(leaf < 0, -1, leaf // f.leaves_per_rail), np.uint8),
            "target": coded(np.array([shard[int(s)] for s in switches]), names.ib_targets(f)),
            "name": coded(switches, f.leaf_names + f.spine_names),
        }


def coded(codes: Ints, values: list[str]) -> pa.Array:
    """A label column; negative codes and empty strings are NULL."""
    codes = np.asarray(codes)
    empty = np.array([value == "" for value in values])
    mask = (codes < 0) | empty[np.maximum(codes, 0)]
    if not mask.any():
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), values)
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, values)


def same(value: str, count: int) -> pa.Array:
    """A label column with one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [value])


def plain(value: str, count: int) -> pa.Array:
    """A text column with one value."""
    return pa.array([value] * count)


def maybe(values: Ints, kind: type) -> pa.Array:
    """Whole numbers; negative ones are NULL."""
    return pa.array(np.maximum(values, 0).astype(kind), mask=values < 0)


def healthy(count: int) -> Static:
    """What Redfish says of a part that works."""
    return {"state": same("Enabled", count), "health": same("OK", count)}
