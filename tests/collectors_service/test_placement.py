"""Rows get their place and their peers from the topology, and none is lost for want of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pipeline.collectors.placement import Placer
from pipeline.collectors.rows import table_of
from pipeline.streams import Contracts, load_contracts
from pipeline.topology import Cable, Entity, Rack, Topology

AT = datetime(2026, 1, 1, tzinfo=UTC)
CONTRACTS = load_contracts()
LEAF, SPINE, HCA = "0x" + "a" * 16, "0x" + "b" * 16, "0x" + "c" * 16

TOPOLOGY = Topology(
    cluster="test",
    racks=(Rack(id="rack-01", cdu="cdu-1"),),
    entities=(
        Entity(kind="host", id="h1", host="h1", rack="rack-01", tray=3),
        Entity(kind="host", id="h2", host="h2", rack="rack-01", tray=4),
        Entity(kind="gpu", id="GPU-1", host="h1", rack="rack-01", tray=3, slot=2, rail=2, leaf="l"),
        Entity(kind="grace_cpu", id="h1/1", host="h1", rack="rack-01", tray=3, slot=1),
        Entity(kind="nvswitch", id="0xd", host="s1", rack="rack-01", tray=1, slot=0),
        Entity(kind="hca", id=HCA, name="h1 mlx5_2", host="h1", rack="rack-01", level="hca"),
        Entity(kind="ib_switch", id=LEAF, name="leaf-1", leaf="leaf-1", level="leaf"),
        Entity(kind="ib_switch", id=SPINE, name="spine-1", level="spine"),
        Entity(kind="manager", id="cdu-1", cdu="cdu-1"),
    ),
    cables=(
        Cable(kind="nvlink", a="GPU-1", a_port=5, b="0xd", b_port=9),
        Cable(kind="host_leaf", a=HCA, a_port=1, b=LEAF, b_port=7),
        Cable(kind="leaf_spine", a=LEAF, a_port=40, b=SPINE, b_port=2),
    ),
)


def placed(stream: str, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    base = {"cluster": "test", "source": "s", "sampled_at": AT, "target": "t"}
    table = table_of(CONTRACTS[stream], [{**base, **row} for row in rows])
    found: list[dict[str, Any]] = Placer(CONTRACTS, TOPOLOGY).place(table, stream).to_pylist()
    return found


def place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("host", "rack", "tray", "slot", "rail", "leaf", "cdu"))


def gpu(uuid: str, host: str | None = None) -> dict[str, Any]:
    return {"gpu_uuid": uuid, "gpu_instance_id": "", "host": host}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (gpu("GPU-1", "h1"), ("h1", "rack-01", 3, 2, 2, "l", "cdu-1")),
        (gpu("GPU-1"), ("h1", "rack-01", 3, 2, 2, "l", "cdu-1")),
        # Unknown GPU of a known host: the host's rack and tray, no slot.
        (gpu("GPU-9", "h2"), ("h2", "rack-01", 4, None, None, None, "cdu-1")),
        # It was put into another host since the file was made.
        (gpu("GPU-1", "h2"), ("h2", "rack-01", 4, None, None, None, "cdu-1")),
        (gpu("GPU-1", "h9"), ("h9", None, None, None, None, None, None)),
        (gpu("GPU-9", "h9"), ("h9", None, None, None, None, None, None)),
        (gpu("GPU-9"), (None,) * 7),
    ],
)
def test_gpu(row: dict[str, Any], expected: tuple[Any, ...]) -> None:
    (found,) = placed("gpu", row)
    assert place_of(found) == expected


def test_no_row_is_lost_and_order_is_kept() -> None:
    rows = [gpu(f"GPU-{n % 3}", "h1" if n % 2 else None) for n in range(50)]
    found = placed("gpu", *rows)
    assert [row["gpu_uuid"] for row in found] == [row["gpu_uuid"] for row in rows]
    assert {row["rack"] for row in found if row["gpu_uuid"] == "GPU-1"} == {"rack-01"}


def test_both_sides_of_an_nvlink() -> None:
    gpu_side, switch_side, dark = placed(
        "nvlink",
        {"device_id": "GPU-1", "link": 5, "side": "gpu"},
        {"device_id": "0xd", "link": 9, "side": "switch"},
        {"device_id": "GPU-1", "link": 6, "side": "gpu"},
    )
    assert (gpu_side["peer_id"], gpu_side["peer_link"]) == ("0xd", 9)
    assert place_of(gpu_side)[:4] == ("h1", "rack-01", 3, 2)
    assert (switch_side["peer_id"], switch_side["peer_link"]) == ("GPU-1", 5)
    assert place_of(switch_side)[:4] == ("s1", "rack-01", 1, 0)
    assert (dark["peer_id"], dark["peer_link"]) == (None, None)


def test_both_ends_of_cables() -> None:
    hca, down, up, spine, unknown = placed(
        "ib_port",
        {"guid": HCA, "port": 1, "host": "h1", "node_name": "as the page says"},
        {"guid": LEAF, "port": 7},
        {"guid": LEAF, "port": 40},
        {"guid": SPINE, "port": 2},
        {"guid": "0xffff", "port": 1},
    )
    assert (hca["level"], hca["direction"], hca["peer_name"]) == ("hca", "up", "leaf-1")
    assert (hca["peer_guid"], hca["peer_port"], hca["node_name"]) == (LEAF, 7, "as the page says")
    assert (down["level"], down["direction"], down["peer_name"]) == ("leaf", "down", "h1 mlx5_2")
    assert (down["leaf"], down["node_name"]) == ("leaf-1", "leaf-1")
    assert (up["direction"], up["peer_guid"], up["peer_port"]) == ("up", SPINE, 2)
    assert (spine["level"], spine["direction"]) == ("spine", "down")
    assert (unknown["level"], unknown["peer_guid"], unknown["rack"]) == (None, None, None)


def test_components_by_themselves_their_manager_or_their_host() -> None:
    cpu, cdu, stranger = placed(
        "component",
        {"manager_id": "h1", "component_id": "cpu1", "entity_type": "grace_cpu", "host": "h1"},
        {"manager_id": "cdu-1", "component_id": "/redfish/v1/x", "entity_type": "cdu"},
        {"manager_id": "m", "component_id": "c", "entity_type": "fan", "host": "h2"},
    )
    assert place_of(cpu)[:4] == ("h1", "rack-01", 3, 1)
    assert cdu["cdu"] == "cdu-1"
    assert place_of(stranger)[:4] == ("h2", "rack-01", 4, None)


def test_events_by_their_entity() -> None:
    rows = placed(
        "event",
        {"entity_kind": "gpu", "entity_id": "GPU-1", "kind": "xid", "code": "79", "host": "h1"},
        {"entity_kind": "nvlink", "entity_id": "0xd/9", "kind": "link_down", "code": ""},
        {"entity_kind": "ib_port", "entity_id": f"{LEAF}/7", "kind": "link_down", "code": ""},
        {"entity_kind": "coolant", "entity_id": "cdu-1/Pump", "kind": "pump_failed", "code": ""},
    )
    assert [row["rack"] for row in rows] == ["rack-01", "rack-01", None, None]
    assert (rows[2]["leaf"], rows[3]["cdu"]) == ("leaf-1", "cdu-1")


def test_without_a_topology_rows_pass_as_they_are(contracts: Contracts) -> None:
    table = pa.table({"gpu_uuid": ["GPU-1"], "host": ["h1"]})
    assert Placer(contracts, None).place(table, "gpu") is table
