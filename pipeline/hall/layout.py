"""The hall's ``topology.json``."""

from __future__ import annotations

from pipeline.hall import constants as c
from pipeline.hall.fleet import Fleet
from pipeline.topology import Cable, Entity, Rack, Topology


def cpu_id(host: str, socket: int) -> str:
    """Id of a Grace CPU in the topology file."""
    return f"{host}/cpu{socket}"


def topology_of(fleet: Fleet) -> Topology:
    """Every entity of the hall with its place, and every cable."""
    return Topology(
        cluster=fleet.cluster,
        racks=tuple(
            Rack(id=rack, row=fleet.cdu_ids[cdu].replace("cdu", "row"), cdu=fleet.cdu_ids[cdu])
            for rack, cdu in zip(fleet.rack_ids, fleet.rack_cdu, strict=True)
        ),
        entities=tuple(_entities(fleet)),
        cables=tuple(_cables(fleet)),
    )


def _entities(fleet: Fleet) -> list[Entity]:
    found: list[Entity] = []
    for number, uuid in enumerate(fleet.gpu_uuids):
        tray, slot = divmod(number, c.GPUS_PER_TRAY)
        place = {
            "host": fleet.hosts[tray],
            "rack": fleet.rack_ids[fleet.gpu_rack[number]],
            "tray": tray % c.TRAYS + 1,
            "slot": slot,
            "rail": slot,
            "leaf": fleet.leaf_names[fleet.gpu_leaf[number]],
        }
        found.append(Entity(kind="gpu", id=uuid, links=c.NVLINKS, **place))
        found.append(
            Entity(
                kind="hca",
                id=fleet.hca_guids[number],
                name=f"{fleet.hosts[tray]} mlx5_{slot}",
                level="hca",
                links=1,
                **place,
            )
        )
    for tray, host in enumerate(fleet.hosts):
        rack = fleet.rack_ids[tray // c.TRAYS]
        number = tray % c.TRAYS + 1
        found.append(Entity(kind="host", id=host, host=host, rack=rack, tray=number))
        found.extend(
            Entity(
                kind="grace_cpu", id=cpu_id(host, socket), host=host, rack=rack, tray=number,
                slot=socket,
            )
            for socket in range(c.CPUS_PER_TRAY)
        )  # fmt: skip
    for number, guid in enumerate(fleet.asic_guids):
        rack_number, asic = divmod(number, c.ASICS_PER_RACK)
        tray = asic // 2
        found.append(
            Entity(
                kind="nvswitch", id=guid, host=fleet.switch_hosts[number // 2],
                rack=fleet.rack_ids[rack_number], tray=tray + 1, slot=asic % 2,
                links=c.GPUS_PER_RACK,
            )
        )  # fmt: skip
    for number, guid in enumerate(fleet.leaf_guids):
        found.append(
            Entity(
                kind="ib_switch", id=guid, name=fleet.leaf_names[number], level="leaf",
                leaf=fleet.leaf_names[number], rail=number // fleet.leaves_per_rail,
                links=c.LEAF_DOWN + fleet.uplinks,
            )
        )  # fmt: skip
    for number, guid in enumerate(fleet.spine_guids):
        found.append(
            Entity(
                kind="ib_switch", id=guid, name=fleet.spine_names[number], level="spine",
                links=fleet.leaves * fleet.links_per_pair,
            )
        )  # fmt: skip
    for cdu in fleet.cdu_ids:
        found.append(Entity(kind="cdu", id=cdu, name=cdu, cdu=cdu))
        found.append(Entity(kind="manager", id=cdu, name=cdu, cdu=cdu))
    for rack in fleet.rack_ids:
        found.append(Entity(kind="rack", id=rack, name=rack, rack=rack))
        found.append(Entity(kind="manager", id=rack, name=rack, rack=rack))
    return found


def _cables(fleet: Fleet) -> list[Cable]:
    found = [
        Cable(
            kind="host_leaf", a=guid, a_port=1,
            b=fleet.leaf_guids[leaf], b_port=int(port), rate_gbps=c.LINE_GBPS,
        )
        for guid, leaf, port in zip(
            fleet.hca_guids, fleet.gpu_leaf, fleet.gpu_leaf_port, strict=True
        )
    ]  # fmt: skip
    found.extend(
        Cable(
            kind="leaf_spine", a=fleet.leaf_guids[leaf], a_port=int(port),
            b=fleet.spine_guids[spine], b_port=int(far), rate_gbps=c.LINE_GBPS,
        )
        for leaf, port, spine, far in zip(
            fleet.up_leaf, fleet.up_port, fleet.up_spine, fleet.spine_port, strict=True
        )
    )  # fmt: skip
    for number, uuid in enumerate(fleet.gpu_uuids):
        rack, position = divmod(number, c.GPUS_PER_RACK)
        found.extend(
            Cable(
                kind="nvlink", a=uuid, a_port=link,
                b=fleet.asic_guids[rack * c.ASICS_PER_RACK + link], b_port=position + 1,
            )
            for link in range(c.NVLINKS)
        )  # fmt: skip
    return found
