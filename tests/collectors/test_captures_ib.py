"""Real InfiniBand pages, trees and command output give the values that their page states."""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.collectors import Page, reader
from pipeline.collectors.prometheus_text import parse
from pipeline.collectors.readers import ib_sysfs
from tests.collectors.helpers import AT, CONTRACTS, close, only, read_file, rows, said


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / "ib"


@pytest.fixture
def exporter(folder: Path) -> Path:
    return folder / "infiniband_exporter"


def ports(found: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(port["guid"], port["port"]): port for port in found}


SWITCH_4 = "0x506b4b4e74c92740"
SWITCH_1 = "0x7cfe905fa067e5b0"
LONELY_HCA = "0x506b4bbdf71d02a6"


def test_exporter_page(folder: Path) -> None:
    path = folder / "infiniband_exporter_page.prom"
    assert len(parse(path.read_bytes())) == 175
    reading = read_file("ib_exporter", path)
    found = ports(rows(reading, "ib_port"))
    assert found[SWITCH_4, 1]["xmit_data_bytes"] == 715166628708940
    assert found[SWITCH_1, 1]["xmit_data_bytes"] == 145192107443712
    assert found[SWITCH_1, 2]["xmit_data_bytes"] == 104026280056104
    assert found[SWITCH_4, 1]["xmit_discards"] == 20046
    assert found[SWITCH_4, 35]["rate_gbps"] == 100  # 1.25e10 B/s
    assert found[SWITCH_4, 35]["peer_guid"] == LONELY_HCA
    assert (found[SWITCH_4, 35]["peer_port"], found[SWITCH_4, 35]["peer_name"]) == (
        1,
        "p0001 HCA-1",
    )
    # The node that did not answer has its info and rate, and no counters.
    lonely = found[LONELY_HCA, 1]
    assert (lonely["rate_gbps"], lonely["lid"], lonely["side"]) == (100, 1432, "hca")
    assert (lonely["peer_guid"], lonely["peer_port"]) == (SWITCH_4, 35)
    assert [name for name in said(lonely) if name.endswith(("_errors", "_packets", "_bytes"))] == []
    assert found["0x7cfe90846ecd4bde", 1]["rcv_data_bytes"] == 39009938353200
    assert {port["side"] for port in found.values()} == {"switch", "hca"}
    assert not reading.rejected


def test_exporter_page_switch_vitals(folder: Path) -> None:
    parts = {
        (part["manager_id"], part["component_id"]): part
        for part in rows(
            read_file("ib_exporter", folder / "infiniband_exporter_page.prom"), "component"
        )
    }
    assert parts[SWITCH_4, "chassis"]["temp_c"] == 53
    assert parts[SWITCH_1, "chassis"]["temp_c"] == 45
    assert parts[SWITCH_4, "psu0"]["power_w"] == 154
    assert parts[SWITCH_1, "psu1"]["power_w"] == 71
    assert parts[SWITCH_4, "fan9"]["fan_rpm"] == 5906
    assert (SWITCH_1, "fan9") not in parts
    assert parts[SWITCH_1, "chassis"]["health"] == "Critical"
    assert parts[SWITCH_1, "chassis"]["failed_component"] == "fans"
    assert parts[SWITCH_4, "chassis"]["health"] == "OK"
    assert parts[SWITCH_4, "psu0"]["health"] == "OK"


def test_node_exporter_page(folder: Path) -> None:
    path = folder / "node_exporter_infiniband.prom"
    assert len(parse(path.read_bytes())) == 51
    reading = read_file("node_exporter_ib", path, host="n1")
    found = ports(rows(reading, "ib_port"))
    assert sorted(found) == [("n1/i40iw0", 1), ("n1/mlx4_0", 1), ("n1/mlx4_0", 2)]
    bare = found["n1/i40iw0", 1]
    assert said(bare, "guid", "port", "side", "level", "device") == {
        "port_state": "active", "phys_state": "linkup", "rate_gbps": 10, "link_layer": "Ethernet",
    }  # fmt: skip
    assert found["n1/mlx4_0", 1]["rate_gbps"] == 40
    # Not 2 x 18527668: the legacy counter repeats the other.
    assert found["n1/mlx4_0", 1]["rcv_data_bytes"] == 18527668
    assert found["n1/mlx4_0", 2]["rcv_data_bytes"] == 0
    assert found["n1/mlx4_0", 1].get("xmit_wait_ticks") is None
    assert reading.rejected == {("saturated", "xmit_wait_ticks"): 1}


def test_sysfs_dump_with_full_registers(folder: Path) -> None:
    reading = read_file("ib_sysfs", folder / "sysfs_counters_saturated_dump.txt")
    port = only(reading, "ib_port")
    assert port["rcv_data_bytes"] == 205128687774249 * 4
    full = ("link_downs", "excessive_buffer_overruns", "xmit_discards", "xmit_wait_ticks")
    assert [port.get(name) for name in full] == [None] * 4
    assert reading.rejected == {("saturated", name): 1 for name in full}
    assert port["quality"] == "saturated"
    counters = [name for name in said(port) if CONTRACTS["ib_port"].column(name).kind == "counter"]
    assert len(counters) + len(full) == 21


def test_sysfs_tree(folder: Path) -> None:
    path = folder / "sysfs_h100_8hca.tar.gz"
    with tarfile.open(path) as tar:
        assert sum(member.isfile() for member in tar) == 486
    reading = read_file("ib_sysfs", path, host="n1")
    found = ports(rows(reading, "ib_port"))
    assert len(found) == 9
    bond = found.pop(("n1/mlx5_bond_0", 1))
    assert (bond["rate_gbps"], bond["link_layer"]) == (200, "Ethernet")
    assert {port["link_layer"] for port in found.values()} == {"InfiniBand"}
    assert [port["rate_gbps"] for port in found.values()] == [400] * 8
    second = found["n1/mlx5_1", 1]
    assert second["link_downs"] is None  # 255: full
    assert second["rcv_data_bytes"] == 205128687774249 * 4
    assert second["port_state"] == "active"
    assert reading.rejected["saturated", "link_downs"] == 1


def test_sysfs_tree_packed_from_a_folder(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(folder / "sysfs_h100_8hca.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    body = ib_sysfs.read_folder(tmp_path / "sys" / "class" / "infiniband")
    packed = reader("ib_sysfs").read(Page(body, "t", AT, "test", host="n1"), CONTRACTS)
    whole = read_file("ib_sysfs", folder / "sysfs_h100_8hca.tar.gz", host="n1", target="t")
    assert ports(rows(packed, "ib_port")) == ports(rows(whole, "ib_port"))


def test_sysfs_without_pma(folder: Path) -> None:
    reading = read_file("ib_sysfs", folder / "sysfs_no_pma_grep.txt", host="n1")
    port = only(reading, "ib_port")
    assert (port["guid"], port["device"]) == ("n1/mlx4_0", "mlx4_0")
    assert set(said(port)) == {"guid", "port", "side", "level", "device"}
    assert sum(reading.rejected.values()) == 10
    assert {reason for reason, _ in reading.rejected} == {"not_supported"}


def test_ibstat(folder: Path) -> None:
    up, down = rows(read_file("ibstat", folder / "ibstat_one_port_down.txt"), "ib_port")
    assert (up["device"], up["port_state"], up["rate_gbps"], up["lid"]) == (
        "mlx5_4",
        "active",
        200,
        90,
    )
    assert up["guid"] == "0x0c42a150d991c078"
    assert (down["device"], down["port_state"], down["phys_state"]) == (
        "mlx5_2",
        "down",
        "disabled",
    )
    assert (down.get("rate_gbps"), down.get("lid")) == (None, None)


def test_ibstatus_of_roce_ports(folder: Path) -> None:
    found = rows(read_file("ibstat", folder / "ibstatus_roce_ports.txt"), "ib_port")
    assert [port["device"] for port in found] == ["mlx5_0", "mlx5_1"]
    for port in found:
        assert (port["port_state"], port["rate_gbps"]) == ("active", 400)
        assert port["link_layer"] == "Ethernet"  # not part of the InfiniBand fabric
        assert port.get("lid") is None


def test_rest_topx(folder: Path) -> None:
    reading = read_file("ufm", folder / "ufm" / "rest_topx.json")
    found = rows(reading, "ib_port")
    assert [(port["guid"], port["port"]) for port in found] == [
        ("0x0c42a14687563bd0", 1), ("0x0c42a14687563bd1", 2),
    ]  # fmt: skip
    assert found[0]["rcv_bytes_per_s"] == 7973165593.609802
    assert [port["quality"] for port in found] == ["bytes_are_4x_packets"] * 2
    assert reading.notes == ["bytes per second are exactly 4 x packets per second"]


def test_tfs_plugin_page(folder: Path) -> None:
    path = folder / "ufm" / "tfs_plugin_metrics.prom"
    assert len(parse(path.read_bytes())) == 7
    first, second = rows(read_file("ufm", path), "component")
    assert first["component_id"] == "192.0.2.68:9001/csv/xcset/ib_basic_debug"
    assert (first["scrape_ms"], second["scrape_ms"]) == (close(64.626), close(25.279))
    assert (first["entities_reporting"], second["entities_reporting"]) == (6, 4)


def test_tfs_records(folder: Path) -> None:
    reading = read_file("ufm", folder / "ufm" / "tfs_small_telemetry.json")
    found = ports(rows(reading, "ib_port"))
    assert len(found) == 6
    assert len({guid for guid, _ in found}) == 4
    # The records' own time, not the text around them, which has no zone.
    assert {port["sampled_at"] for port in found.values()} == {
        datetime(2024, 3, 5, 15, 25, 47, 161000, tzinfo=UTC)
    }
    assert found["0x248a07be8c9d19a0", 23]["link_downs"] == 3
    assert found["0x248a07be8c9d19a0", 1]["link_downs"] == 1
    assert found["0x248a07be8c9d19a0", 23]["xmit_packets"] == 244479
    # 288 a packet: the length of a management packet in bytes, so neither words nor Gb.
    assert found["0x0c42a1a8db5db890", 1]["xmit_data_bytes"] == 288 * 14190
    assert "the newest record is old: a cache that is replayed" in reading.notes


PERFQUERY = [
    ("perfquery-0x506b4b4e74c92740.out", SWITCH_4, 1, {
        "xmit_data_bytes": 715166628708940, "xmit_discards": 20046, "rcv_switch_relay_errors": 7,
        "link_downs": 1, "xmit_wait_ticks": 41864608, "lid": 2052,
    }),
    ("perfquery-0x7cfe905fa067e5b0.out", SWITCH_1, 2, {"xmit_data_bytes": 26006570014026 * 4}),
    ("perfquery-0x7cfe90846ecd4b96.out", "0x7cfe90846ecd4b96", 1, {
        "rcv_data_bytes": 148901607811540,
    }),
    ("perfquery-0x7cfe90846ecd4bde.out", "0x7cfe90846ecd4bde", 1, {
        "xmit_data_bytes": 36198369975904, "rcv_data_bytes": 39009938353200,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("name", "guid", "port", "expected"), PERFQUERY)
def test_perfquery(
    exporter: Path, name: str, guid: str, port: int, expected: dict[str, int]
) -> None:
    reading = read_file("perfquery", exporter / name)
    found = ports(rows(reading, "ib_port"))[guid, port]
    assert {column: found[column] for column in expected} == expected
    assert not reading.rejected


def test_perfquery_of_two_ports(exporter: Path) -> None:
    found = rows(read_file("perfquery", exporter / "perfquery-0x7cfe905fa067e5b0.out"), "ib_port")
    assert [port["port"] for port in found] == [1, 2]


def test_perfquery_of_a_node_that_timed_out(exporter: Path) -> None:
    reading = read_file("perfquery", exporter / "perfquery-0x506b4bbdf71d02a6.out")
    assert not reading.tables
    assert reading.notes == ["no text: the node did not answer in time"]


@pytest.mark.parametrize(
    ("guid", "port"),
    [
        (SWITCH_4, 1),
        (SWITCH_1, 1),
        (SWITCH_1, 2),
        ("0x7cfe90846ecd4b96", 1),
        ("0x7cfe90846ecd4bde", 1),
    ],
)
def test_perfquery_receive_errors(exporter: Path, guid: str, port: int) -> None:
    reading = read_file("perfquery", exporter / f"perfquery-rcv-error-{guid}-{port}.out")
    found = only(reading, "ib_port")
    assert (found["guid"], found["port"]) == (guid, port)
    counters = {
        name: value
        for name, value in said(found).items()
        if CONTRACTS["ib_port"].column(name).kind == "counter"
    }
    assert len(counters) == 6
    assert set(counters.values()) == {0}


def parts(
    exporter: Path, name: str
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], int]]:
    reading = read_file("ibswinfo", exporter / name)
    found = {part["component_id"]: part for part in rows(reading, "component")}
    return found, dict(reading.rejected)


def fans(found: dict[str, dict[str, Any]]) -> list[float]:
    return [part["fan_rpm"] for name, part in sorted(found.items())
            if name.startswith("fan") and part["fan_rpm"] is not None]  # fmt: skip


def test_ibswinfo_switchib(exporter: Path) -> None:
    found, rejected = parts(exporter, "ibswinfo-test1.out")
    assert found["chassis"]["temp_c"] == 45
    assert (found["psu0"]["power_w"], found["psu1"]["power_w"]) == (72, 71)
    assert len(fans(found)) == 8
    assert (found["chassis"]["health"], found["chassis"]["failed_component"]) == (
        "Critical",
        "fans",
    )
    assert found["chassis"]["uptime_s"] == 160 * 86400 + 10 * 3600 + 38 * 60 + 53
    assert found["chassis"]["manager_id"] == "0x1c34daae6e940540"
    assert not rejected


def test_ibswinfo_quantum(exporter: Path) -> None:
    found, rejected = parts(exporter, "ibswinfo-test2.out")
    assert found["chassis"]["temp_c"] == 53
    assert found["psu0"]["power_w"] + found["psu1"]["power_w"] == 154 + 134
    assert len(fans(found)) == 9
    assert not rejected


def test_ibswinfo_failed_power_supply(exporter: Path) -> None:
    found, rejected = parts(exporter, "ibswinfo-test3.out")
    assert found["chassis"]["temp_c"] == 47
    assert found["psu0"]["power_w"] == 287
    assert found["psu1"]["power_w"] is None
    assert (found["psu1"]["health"], found["psu1"]["failed_component"]) == (
        "Critical",
        "dc_power,fan",
    )
    assert found["psu0"]["health"] == "OK"
    assert not rejected


def test_ibswinfo_missing_rows(exporter: Path) -> None:
    found, _ = parts(exporter, "ibswinfo-test1-missing.out")
    assert found["psu0"]["power_w"] is None
    assert found["psu1"]["power_w"] == 71
    assert found["chassis"].get("temp_c") is None
    assert found["fan1"]["fan_rpm"] is None
    assert len(fans(found)) == 7


@pytest.mark.parametrize(
    ("name", "part", "column"),
    [
        ("ibswinfo-test-err1.out", "psu0", "power_w"),
        ("ibswinfo-test-err2.out", "chassis", "temp_c"),
        ("ibswinfo-test-err3.out", "fan1", "fan_rpm"),
    ],
)
def test_ibswinfo_text_for_a_number(exporter: Path, name: str, part: str, column: str) -> None:
    found, rejected = parts(exporter, name)
    assert found[part].get(column) is None
    assert rejected == {("not_a_number", column): 1}
    good, _ = parts(exporter, "ibswinfo-test1.out")
    assert len(found) == len(good)
    readings = ("power_w", "temp_c", "fan_rpm", "uptime_s", "max_temp_c")
    kept = {(key, name) for key in found for name in readings if found[key].get(name) is not None}
    whole = {(key, name) for key in good for name in readings if good[key].get(name) is not None}
    assert whole - kept == {(part, column)}


def test_ibswinfo_vitals(exporter: Path) -> None:
    found, rejected = parts(exporter, "ibswinfo-vitals1.out")
    assert found["chassis"]["uptime_s"] == 16982312
    assert (found["psu0"]["power_w"], found["psu1"]["power_w"]) == (92, 102)
    assert found["chassis"]["temp_c"] == 73
    assert len(fans(found)) == 9
    assert not rejected
