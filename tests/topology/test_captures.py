"""Real topologies give the numbers that their page states."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pipeline.topology.imports import Draft, merge, read_source
from pipeline.topology.imports.draft import NoTopologyError


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / "topology"


def test_gb200_fabric(folder: Path) -> None:
    draft = read_source(folder / "ibnet_gb200_nvl_ndr.out")
    assert (draft.facts["switches"], draft.facts["leaves"], draft.facts["spines"]) == (40, 31, 9)
    assert draft.facts["cas"] == 582
    assert draft.facts["aggregation_nodes"] == 40
    names = Counter(said.get("name") for (kind, _), said in draft.entities.items() if kind == "hca")
    assert names["MT4129 ConnectX7   Mellanox Technologies"] == 69
    assert draft.facts["cables"] == 1114
    assert {cable.rate_gbps for cable in draft.cables.values()} == {400.0}
    assert not draft.skipped
    topology = merge([draft], "test").topology
    (hca,) = [e for e in topology.entities if e.name == "a08-p1-dgx-04-c01 mlx5_5"]
    assert hca.leaf == "A09-P1-IBLEAF-04-04"
    far, port = topology.peers[hca.id, 1]
    assert topology.by_id["ib_switch", far].name == "A09-P1-IBLEAF-04-04"
    assert port == 1
    # Racks of 18 trays, c01 to c18.
    assert (hca.host, hca.rack, hca.tray) == ("a08-p1-dgx-04-c01", "a08-p1-dgx-04", 1)
    trays = {e.tray for e in topology.entities if e.kind == "host" and e.rack == "a07-p1-dgx-03"}
    assert trays == set(range(1, 19))
    # Machines called localhost or ubuntu are no hosts.
    hosts = {e.id for e in topology.entities if e.kind == "host"}
    assert not hosts & {"localhost", "ubuntu", "MT4129", "Mellanox"}
    # Wired by rail: the four adapters of a tray are on four rails.
    rails = {e.rail for e in topology.entities if e.host == "a07-p1-dgx-03-c01" and e.kind == "hca"}
    assert rails == {0, 1, 2, 3}


def test_storage_fabric(folder: Path) -> None:
    draft = read_source(folder / "ibnet_superpod_hdr_storage.txt.gz")
    assert draft.facts["switches"] == 160
    assert draft.facts["cas"] == 1247
    assert draft.facts["cables"] == 3286
    assert draft.facts["hosts"] == 628
    # This one is not wired by rail, so no rail is made up.
    assert all("rail" not in said for said in draft.entities.values())


def test_lonely_hca(folder: Path) -> None:
    draft = read_source(folder / "ibnet_lonely_hca.out")
    assert (draft.facts["switches"], draft.facts["cas"], draft.facts["cables"]) == (0, 1, 0)
    assert merge([draft], "test").topology.cables == ()


def test_one_line_per_link(captures: Path) -> None:
    draft = read_source(captures / "ib" / "infiniband_exporter" / "ibnetdiscover-test.out")
    assert (draft.facts["ca_rows"], draft.facts["switch_rows"]) == (3, 6)
    assert draft.facts["rows_with_peer"] == 7
    assert draft.skipped["port_without_peer"] == 2
    topology = merge([draft], "test").topology
    (hca,) = [entity for entity in topology.entities if entity.name == "o0001 HCA-1"]
    far, port = topology.peers[hca.id, 1]
    assert (topology.by_id["ib_switch", far].name, port) == ("ib-i1l1s01", 10)
    assert {cable.rate_gbps for cable in topology.cables} == {100.0}


def test_error_message_is_no_topology(captures: Path) -> None:
    with pytest.raises(NoTopologyError, match="holds no node"):
        read_source(captures / "ib" / "ibnetdiscover_stderr_no_mad.txt")


def nodes_by_rack(draft: Draft) -> Counter[object]:
    return Counter(said.get("rack") for (kind, _), said in draft.entities.items() if kind == "host")


def test_nvl72_model(folder: Path) -> None:
    draft = read_source(folder / "model_nvl72.yaml")
    assert (draft.facts["blocks"], draft.facts["nodes"]) == (4, 72)
    assert set(nodes_by_rack(draft).values()) == {18}
    topology = merge([draft], "test").topology
    assert topology.place("host", "node1118")[:2] == ("node1118", "nvl-1-1")
    assert topology.place("host", "node1118").leaf == "leaf-1-1"
    assert topology.by_id["ib_switch", "leaf-1-1"].level == "leaf"
    assert topology.by_id["ib_switch", "spine-1"].level == "spine"


def test_large_model(folder: Path) -> None:
    draft = read_source(folder / "model_large.yaml")
    assert (draft.facts["switches"], draft.facts["blocks"], draft.facts["nodes"]) == (7, 12, 96)
    assert set(nodes_by_rack(draft).values()) == {8}
    assert ("host", "srv1108") in draft.entities


def test_irregular_model(folder: Path) -> None:
    draft = read_source(folder / "model_dual_accelerator_irregular.yaml")
    assert (draft.facts["switches"], draft.facts["blocks"], draft.facts["nodes"]) == (3, 29, 255)
    racks = nodes_by_rack(draft)
    assert (racks["rack-1-01"], racks["rack-2-15"], racks["rack-1-04"]) == (9, 5, 7)


def test_slurm_blocks(folder: Path) -> None:
    draft = read_source(folder / "slurm_block_8.conf")
    assert (draft.facts["blocks"], draft.facts["nodes"]) == (12, 96)
    assert nodes_by_rack(draft)["rack62"] == 8
    assert ("host", "srv6208") in draft.entities
    assert "block sizes 8,16,32" in draft.notes
    assert "block rack11 is NVLink domain nvl-1-1" in draft.notes


def test_nmx_compute_nodes(folder: Path) -> None:
    draft = read_source(folder / "nmx_compute_nodes.json")
    assert (draft.facts["nodes"], draft.facts["domains"], draft.facts["gpus"]) == (2, 1, 8)
    topology = merge([draft], "test").topology
    # TrayIndex counts from 0, trays here from 1.
    assert topology.place("host", "node1")[:3] == ("node1", "1820000000001", 5)
    assert topology.place("host", "node2").tray == 13
    assert [note.split(" of ")[0] for note in draft.notes] == ["node1: slot 5", "node2: slot 22"]
