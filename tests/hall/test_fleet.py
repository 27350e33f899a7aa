from __future__ import annotations

from collections import Counter

import pytest

from pipeline.errors import ConfigError
from pipeline.hall.fleet import build_fleet
from pipeline.hall.layout import topology_of


def test_reference_fleet_is_the_fat_tree_of_the_reference_architecture() -> None:
    # NVIDIA DGX SuperPOD XDR: 4,608 GPUs = 64 leaf + 36 spine, two links per pair.
    fleet = build_fleet(64, 1)
    assert fleet.gpus == 4608
    assert (fleet.leaves, fleet.spines, fleet.links_per_pair) == (64, 36, 2)
    assert fleet.fabric_links == 4608
    assert fleet.racks * 72 * 18 == 82_944  # NVLinks
    assert fleet.cdus == 7


@pytest.mark.parametrize("racks", [1, 2, 3, 4, 5, 8, 20, 64, 144])
def test_ports_are_used_once_and_fit_a_144_port_switch(racks: int) -> None:
    fleet = build_fleet(racks, 1)
    leaf_ports = [
        *zip(fleet.gpu_leaf.tolist(), fleet.gpu_leaf_port.tolist(), strict=True),
        *zip(fleet.up_leaf.tolist(), fleet.up_port.tolist(), strict=True),
    ]
    spine_ports = list(zip(fleet.up_spine.tolist(), fleet.spine_port.tolist(), strict=True))
    for ports in (leaf_ports, spine_ports):
        assert len(set(ports)) == len(ports)
        assert max(port for _, port in ports) <= 144
        assert min(port for _, port in ports) >= 1
    pairs = Counter(zip(fleet.up_leaf.tolist(), fleet.up_spine.tolist(), strict=True))
    assert set(pairs.values()) == {fleet.links_per_pair}
    assert len(pairs) == fleet.leaves * fleet.spines


def test_topology_knows_both_ends_of_every_cable() -> None:
    fleet = build_fleet(2, 5)
    topology = topology_of(fleet)
    assert len(topology.peers) == 2 * len(topology.cables)
    by_kind = Counter(cable.kind for cable in topology.cables)
    assert by_kind == {"host_leaf": 144, "leaf_spine": fleet.fabric_links, "nvlink": 144 * 18}
    switches = {entity.id for entity in topology.entities}
    for a, b in topology.peers.items():
        assert topology.peers[b] == a
        assert a[0] in switches
    place = topology.place("gpu", fleet.gpu_uuids[72 + 4 * 3 + 2])
    assert (place.rack, place.tray, place.slot, place.rail) == ("rack-02", 4, 2, 2)
    assert place.host == "rack-02-tray-04"
    assert place.cdu == "cdu-2"


def test_identities_follow_from_cluster_and_seed() -> None:
    assert build_fleet(1, 1).gpu_uuids == build_fleet(1, 1).gpu_uuids
    assert build_fleet(1, 1).gpu_uuids != build_fleet(1, 2).gpu_uuids
    assert not set(build_fleet(1, 1).gpu_uuids) & set(build_fleet(1, 1, cluster="drill").gpu_uuids)


def test_a_hall_without_racks_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 144 racks"):
        build_fleet(0, 1)
