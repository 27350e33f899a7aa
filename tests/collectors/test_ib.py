"""InfiniBand and NVLink switch sources: identity, sides, full registers, odd forms."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.collectors import Reading
from pipeline.collectors.changes import Changes
from pipeline.collectors.fabric import normal_guid
from pipeline.collectors.readers import ib_sysfs
from tests.collectors.helpers import AT, only, read, rows, said


@pytest.mark.parametrize(
    "text",
    [
        "0x0c42a10300d9c078",
        "0C42A10300D9C078",
        "c42a10300d9c078",
        "0c42:a103:00d9:c078",
        " 0xc42a10300d9c078\n",
    ],
)
def test_one_guid_in_all_its_forms(text: str) -> None:
    assert normal_guid(text) == "0x0c42a10300d9c078"


@pytest.mark.parametrize(
    "text", [None, "", "0x", "0x0", "0000:0000:0000:0000", "xyz", "1" * 17, "0x-1"]
)
def test_what_is_no_guid(text: str | None) -> None:
    assert normal_guid(text) is None


def exporter_port(side: str, guid: str, port: int, **counters: object) -> str:
    return "".join(
        f'infiniband_{side}_port_{name}{{guid="{guid}",port="{port}"}} {value}\n'
        for name, value in counters.items()
    )


def test_two_sides_of_one_cable_are_two_ports_of_one_link() -> None:
    page = exporter_port("switch", "0x1", 7, transmit_wait_total=5)
    page += exporter_port("hca", "0x2", 1, transmit_wait_total=0)
    page += (
        'infiniband_switch_uplink_info{guid="0x1",port="7",switch="leaf",uplink="h HCA-1",'
        'uplink_guid="0x2",uplink_lid="3",uplink_port="1",uplink_type="CA"} 1\n'
        'infiniband_hca_uplink_info{guid="0x2",port="1",hca="h HCA-1",uplink="leaf",'
        'uplink_guid="0x1",uplink_lid="4",uplink_port="7",uplink_type="SW"} 1\n'
        'infiniband_hca_rate_bytes_per_second{guid="0x2"} 1e+11\n'
        'infiniband_switch_port_rate_bytes_per_second{guid="0x1",port="7"} 1e+11\n'
    )
    switch, hca = sorted(rows(read("ib_exporter", page), "ib_port"), key=lambda row: row["guid"])
    assert (switch["side"], hca["side"]) == ("switch", "hca")
    assert (switch["peer_guid"], switch["peer_port"]) == (hca["guid"], hca["port"])
    assert (hca["peer_guid"], hca["peer_port"]) == (switch["guid"], switch["port"])
    assert switch["rate_gbps"] == hca["rate_gbps"] == 800
    assert (switch["node_name"], hca["node_name"]) == ("leaf", "h HCA-1")
    assert hca["level"] == "hca"


def test_the_exporter_reads_wide_counters() -> None:
    page = exporter_port(
        "switch", "0x1", 1, link_downed_total=255, excessive_buffer_overrun_errors_total=15,
        transmit_wait_total="4.294967295e+09",
    )  # fmt: skip
    reading = read("ib_exporter", page)
    port = only(reading, "ib_port")
    assert (port["link_downs"], port["excessive_buffer_overruns"]) == (255, 15)
    assert port.get("xmit_wait_ticks") is None
    assert reading.rejected == {("saturated", "xmit_wait_ticks"): 1}


def test_exporter_labels_that_are_none() -> None:
    page = exporter_port("switch", "nonsense", 1, link_downed_total=1)
    page += 'infiniband_switch_port_link_downed_total{guid="0x1",port="x"} 1\n'
    page += f'infiniband_switch_info{{guid="0x1",port="{"9" * 5000}",lid="7"}} 1\n'
    page += 'infiniband_switch_info{guid="0x1",lid="7"} 1\n'
    page += 'infiniband_exporter_collector_success{collector="switch"} 1\n'
    reading = read("ib_exporter", page)
    assert not reading.tables
    assert set(reading.rejected) == {("bad_label", "guid"), ("bad_label", "port")}


def test_a_node_that_did_not_answer_is_neither_gone_nor_without_errors() -> None:
    """Its counters are missing: not 0, no link that went down, and no other node is touched."""
    names = 'infiniband_hca_info{guid="0x2",hca="h1 HCA-1",lid="7"} 1\n'
    names += 'infiniband_hca_uplink_info{guid="0x2",port="1",uplink="s1",uplink_guid="0x1"} 1\n'
    other = exporter_port("switch", "0x1", 1, link_downed_total=0, symbol_error_total=3)
    counters = exporter_port("hca", "0x2", 1, link_downed_total=2, symbol_error_total=5)
    changes = Changes()
    answered = read("ib_exporter", other + names + counters)
    assert changes.look("t", "ib_port", answered.tables["ib_port"]) == []
    silent = read("ib_exporter", other + names)
    assert changes.look("t", "ib_port", silent.tables["ib_port"]) == []
    found = {port["guid"]: port for port in rows(silent, "ib_port")}
    node = found["0x0000000000000002"]
    assert (node["link_downs"], node["symbol_errors"]) == (None, None)
    assert (node["node_name"], node["peer_name"]) == ("h1 HCA-1", "s1")
    assert found["0x0000000000000001"]["symbol_errors"] == 3
    # It comes back with what it had: nothing happened. It comes back with more: that is told.
    assert changes.look("t", "ib_port", answered.tables["ib_port"]) == []
    worse = read("ib_exporter", other + names + counters.replace("} 2", "} 3"))
    (event,) = changes.look("t", "ib_port", worse.tables["ib_port"])
    assert (event["kind"], event["previous"], event["current"]) == ("link_down", "2", "3")


# -- RoCE

STATE = "node_infiniband_state_id{%s} 4\nnode_infiniband_rate_bytes_per_second{%s} 5e+10\n"


def roce_page(device: str, label: str = "", more: str = "") -> str:
    labels = f'device="{device}",port="1"{label}'
    return STATE.replace("%s", labels) + more


@pytest.mark.parametrize(
    "page",
    [
        roce_page("mlx5_0", ',link_layer="Ethernet"'),
        roce_page(
            "mlx5_0",
            more='node_infiniband_port_info{device="mlx5_0",port="1",link_layer="Ethernet"} 1\n',
        ),
        *(roce_page(name) for name in ("rocep1s0f0", "bnxt_re0", "irdma1", "mlx5_bond_0")),
    ],
)
def test_a_roce_port_of_node_exporter_says_so(page: str) -> None:
    port = only(read("node_exporter_ib", page, host="h"), "ib_port")
    assert (port["link_layer"], port["rate_gbps"]) == ("Ethernet", 400)


def test_a_port_of_node_exporter_that_says_nothing_is_not_called_ethernet() -> None:
    port = only(read("node_exporter_ib", roce_page("mlx5_0"), host="h"), "ib_port")
    assert port.get("link_layer") is None
    said_so = roce_page("ibp1s0", ',link_layer="InfiniBand"')
    assert only(read("node_exporter_ib", said_so), "ib_port")["link_layer"] == "InfiniBand"


@pytest.mark.parametrize(("device", "link_layer"), [("mlx5_0", "Ethernet\n"), ("bnxt_re0", "")])
def test_a_roce_port_of_a_tree_says_so(tmp_path: Path, device: str, link_layer: str) -> None:
    tree(tmp_path, device, link_layer=link_layer)
    assert only(sysfs(tmp_path), "ib_port")["link_layer"] == "Ethernet"


def test_a_roce_port_of_ibstat_says_so() -> None:
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tLink layer: Ethernet\n"
    assert only(read("ibstat", text), "ib_port")["link_layer"] == "Ethernet"


# -- perfquery


def test_narrow_and_wide_counters_of_perfquery() -> None:
    lines = "LinkDownedCounter:...............255\nPortXmitWait:....................4294967295\n"
    narrow = read(
        "perfquery", "# Port counters: Lid 5 port 1 (CapMask: 0x5300)\n" + lines, target="0x1"
    )
    assert set(said(only(narrow, "ib_port"))) == {"guid", "port", "link_layer", "lid", "quality"}
    assert set(narrow.rejected) == {("saturated", "link_downs"), ("saturated", "xmit_wait_ticks")}
    wide = read(
        "perfquery",
        "# Port extended counters: Lid 5 port 1 (CapMask: 0x5300)\n" + lines,
        target="0x1",
    )
    assert only(wide, "ib_port")["link_downs"] == 255
    assert set(wide.rejected) == {("saturated", "xmit_wait_ticks")}


@pytest.mark.parametrize("order", [1, -1])
def test_the_wide_counter_is_preferred(order: int) -> None:
    blocks = [
        "# Port counters: Lid 5 port 1\nPortXmitData:....4294967295\nPortRcvPkts:..7\n",
        "# Port extended counters: Lid 5 port 1\nPortXmitData:....5000000000\n",
    ]
    reading = read("perfquery", "".join(blocks[::order]), target="0x1")
    port = only(reading, "ib_port")
    assert (port["xmit_data_bytes"], port["rcv_packets"]) == (20_000_000_000, 7)
    assert reading.rejected == {("saturated", "xmit_data_bytes"): 1}


def test_perfquery_without_a_guid() -> None:
    reading = read("perfquery", "# Port counters: Lid 5 port 1\nRcvPkts:....3\nNew:...1\nhello\n")
    port = only(reading, "ib_port")
    assert (port["guid"], port["rcv_packets"]) == ("t/lid-5", 3)
    assert reading.rejected == {("unknown_counter", ""): 1, ("bad_line", ""): 1}


# -- sysfs


def tree(folder: Path, device: str, **files: str) -> Path:
    port = folder / device / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (folder / device / "node_guid").write_text("0c42:a103:00d9:c078\n")
    for name, content in {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "800 Gb/sec (4X XDR)",
        "link_layer": "InfiniBand", "lid": "0x5a", **files,
    }.items():  # fmt: skip
        (port / name.replace("__", "/")).write_text(content)
    return folder


def sysfs(folder: Path) -> Reading:
    return read("ib_sysfs", ib_sysfs.read_folder(folder), host="h")


def test_a_live_tree(tmp_path: Path) -> None:
    folder = tree(tmp_path, "mlx5_0", counters__port_xmit_data="250", counters__link_downed="3\n")
    reading = sysfs(folder)
    port = only(reading, "ib_port")
    assert (port["guid"], port["port"], port["device"]) == ("0x0c42a10300d9c078", 1, "mlx5_0")
    assert (port["rate_gbps"], port["lid"]) == (800, 0x5A)
    assert (port["port_state"], port["phys_state"]) == ("active", "linkup")
    assert (port["xmit_data_bytes"], port["link_downs"]) == (1000, 3)
    assert not reading.rejected


def test_a_port_that_is_down_has_no_rate(tmp_path: Path) -> None:
    port = only(
        sysfs(tree(tmp_path, "mlx5_0", state="1: DOWN", rate="10 Gb/sec", lid="0xffff")), "ib_port"
    )
    assert port["port_state"] == "down"
    assert (port.get("rate_gbps"), port.get("lid")) == (None, None)


def test_a_port_of_the_fabric_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL from a counter: the port stays, its other counters are not tried, others are read."""
    tree(tmp_path, "mlx5_0", counters__VL15_dropped="0", counters__port_xmit_data="1")
    tree(tmp_path, "mlx5_1", counters__VL15_dropped="0", counters__port_xmit_data="1")
    tried: list[str] = []
    real = Path.open

    def fail(self: Path, *args: object, **more: object) -> object:
        if "counters" in self.parts:
            tried.append(f"{self.parts[-5]}/{self.name}")
            if "mlx5_0" in self.parts:
                raise OSError(22, "Invalid argument")
        return real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", fail)
    body = ib_sysfs.read_folder(tmp_path)
    monkeypatch.undo()
    assert tried == ["mlx5_0/VL15_dropped", "mlx5_1/VL15_dropped", "mlx5_1/port_xmit_data"]
    reading = read("ib_sysfs", body, host="h")
    # Both trees have one GUID here, so their ports are told by their devices only.
    assert reading.rejected["unreadable", "vl15_dropped"] == 1
    assert any("Invalid argument" in note for note in reading.notes)
    assert rows(reading, "ib_port")[0]["xmit_data_bytes"] == 4


def test_an_archive_that_is_cut(tmp_path: Path) -> None:
    body = ib_sysfs.read_folder(tree(tmp_path, "mlx5_0", counters__link_downed="3"))
    for length in (0, 10, 512, 700, 1500, len(body) // 2):
        reading = read("ib_sysfs", body[:length])
        assert sum(len(rows(reading, name)) for name in reading.tables) <= 1
    assert read("ib_sysfs", b"\x1f\x8b\x08\x00").rejected == {("bad_archive", ""): 1}


# -- ibstat


def test_adapters_with_two_ports() -> None:
    text = "CA 'mlx5_0'\n\tNode GUID: 0x0c42a10300d9c078\n" + "".join(
        f"\tPort {n}:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: {n}00\n"
        "\t\tBase lid: 7\n\t\tLink layer: InfiniBand\n"
        for n in (1, 2)
    )
    found = rows(read("ibstat", text), "ib_port")
    assert [(port["port"], port["rate_gbps"]) for port in found] == [(1, 100), (2, 200)]


def test_lines_of_adapters_that_are_none() -> None:
    for line in (" " * 200_000, "\tState" + " " * 200_000, "a" * 600, "\t:", "CA '", "\tPort x:"):
        reading = read("ibstat", f"CA 'mlx5_0'\n\tPort 1:\n\t\tRate: 400\n{line}\n")
        assert only(reading, "ib_port")["rate_gbps"] == 400


GOOD_PORT = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n"
OF_ANOTHER = "\t\tState: Down\n\t\tRate: 10\n"


@pytest.mark.parametrize(
    "head",
    [
        "\tPort x2:\n",
        "\tPort 123456:\n",
        "\tPort:\n",
        "CA 'mlx5_1\n",
        "CA 'mlx5_1'\n\tPort x:\n",
        "Infiniband device 'mlx5_1' port x status:\n",
    ],
)
def test_lines_of_a_port_that_is_none_are_nobodys(head: str) -> None:
    reading = read("ibstat", GOOD_PORT + head + OF_ANOTHER)
    port = only(reading, "ib_port")
    assert (port["port"], port["port_state"], port["rate_gbps"]) == (1, "active", 400)
    assert reading.rejected == {("bad_line", ""): 1}


def test_the_port_behind_one_that_is_none_is_read() -> None:
    text = GOOD_PORT + "\tPort x2:\n" + OF_ANOTHER + "\tPort 3:\n\t\tRate: 100\n"
    found = rows(read("ibstat", text), "ib_port")
    assert [(port["port"], port["rate_gbps"]) for port in found] == [(1, 400), (3, 100)]


# -- ibswinfo


@pytest.mark.parametrize(
    "line",
    [
        "uptime (dd-h:m:s)   | 160d-10:38:53",
        "uptime",
        "|",
        ":::",
        "a" * 600 + "|1",
        "fan#x (rpm) | 3",
    ],
)
def test_switch_lines_that_are_none(line: str) -> None:
    page = f"GUID | 0x1c34daae6e940540\n{line}\ntemperature (C)    | 45\n"
    part = only(read("ibswinfo", page), "component")
    assert (part["manager_id"], part["component_id"], part["temp_c"]) == (
        "0x1c34daae6e940540", "chassis", 45,
    )  # fmt: skip


# -- UFM


HEADER = (
    "timestamp,source_id,node_guid,port_guid,port_num,PortXmitDataExtended,PortXmitWaitExtended,"
    "Raw_BER\n"
)


def test_csv_of_ufm() -> None:
    text = HEADER + (
        "1767268800000000,x,0x1,0x1,3,250,99,1.5e-254\n"
        "1767268800000000,x,0x1,0x1,4,,,\n"  # nothing changed: sparse
        "1767268800000000,x,,,5,1,1,0\n"
        "17,x,0x1,0x1,6,1,1,0\n"
    )
    reading = read("ufm", text)
    third, fourth = rows(reading, "ib_port")
    assert (third["port"], third["xmit_data_bytes"], third["xmit_wait_ticks"]) == (3, 1000, 99)
    assert third["raw_ber"] == 0
    assert third["sampled_at"] == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert (fourth["port"], fourth["xmit_data_bytes"], fourth["raw_ber"]) == (4, None, None)
    assert reading.rejected == {("no_identity", "guid"): 1, ("time_out_of_range", "sampled_at"): 1}
    assert reading.notes == []


def test_a_replayed_cache_of_ufm_repeats_the_row() -> None:
    text = HEADER + "1767265200000000,x,0x1,0x1,3,250,99,0\n"
    first, second = read("ufm", text), read("ufm", text)
    assert rows(first, "ib_port") == rows(second, "ib_port")  # the same identity: stored once
    assert first.notes == ["the newest record is old: a cache that is replayed"]


def test_prometheus_of_ufm() -> None:
    at = int(AT.timestamp() * 1000)
    text = (
        f'PortXmitDataExtended{{node_guid="0x1",port_num="3"}} 250 {at}\n'
        f'SymbolErrorCounterExtended{{node_guid="0x1",port_num="3"}} 65535 {at}\n'
    )
    port = only(read("ufm", text), "ib_port")
    assert (port["xmit_data_bytes"], port["symbol_errors"]) == (1000, 65535)


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[1,2]",
        '{"values":3}',
        '[{"guid":[]}]',
        '{"values":[{"node_guid":"0x1","port_num":{}}]}',
        "[" * 100_000,
    ],
)
def test_json_of_no_shape(body: str) -> None:
    reading = read("ufm", body)
    assert not reading.tables


@pytest.mark.parametrize("name", ["node_description", "name"])
def test_half_a_character_in_a_record_costs_no_page(name: str) -> None:
    half = {"node_guid": "0x1", "port_num": 1, name: "h\ud800 mlx5_\udfff", "PortRcvPkts": 7}
    odd = {"node_guid": "0x3\ud800", "port_num": 1, "timestamp": "\ud800", "PortRcvPkts": "\ud800"}
    whole = {"node_guid": "0x2", "port_num": 1, "node_description": "hü mlx5_0"}
    first, second = rows(read("ufm", json.dumps([half, odd, whole])), "ib_port")
    assert (first["node_name"], first["host"], first["device"]) == ("h? mlx5_?", "h?", "mlx5_?")
    assert first["rcv_packets"] == 7
    assert (second["node_name"], second["host"]) == ("hü mlx5_0", "hü")


def test_bytes_of_a_csv_that_are_no_text() -> None:
    head = b"node_guid,port_num,node_description,PortXmitWaitExtended\n"
    port = only(read("ufm", head + b"0x1,3,h\xed\xa0\x80 mlx5_0,99\n"), "ib_port")
    assert (port["xmit_wait_ticks"], port["device"]) == (99, "mlx5_0")


def test_values_of_no_shape_in_records() -> None:
    record = {"node_guid": "0x1", "port_num": 1, "PortXmitPkts": {"a": 1}, "PortRcvPkts": 10**400}
    reading = read("ufm", json.dumps([record]))
    assert set(said(only(reading, "ib_port"))) == {"guid", "port", "link_layer"}
    assert reading.rejected == {
        ("not_a_number", "xmit_packets"): 1,
        ("not_finite", "rcv_packets"): 1,
    }


# -- NVLink switches


def test_an_nmxt_port() -> None:
    labels = (
        'Node_GUID="0xb0CF0E0300F43C20",Port_Number="5",port_state="Active",'
        'link_partner_node_guid="0x1",link_partner_port_num="2",Module_Temperature="41C"'
    )
    page = "".join(
        f"{name}{{{labels}}} {value}\n"
        for name, value in {
            "Effective_BER": "1.5e-254", "Link_Down": 2, "total_successful_recovery_events": 7,
            "PortXmitWait": 12, "lid": 3093,
        }.items()
    )  # fmt: skip
    reading = read("nmxt", page)
    link = only(reading, "nvlink")
    assert (link["device_id"], link["link"], link["side"]) == ("0xb0cf0e0300f43c20", 5, "switch")
    assert (link["effective_ber"], link["link_downs"], link["recovery_successful"]) == (0, 2, 7)
    assert (link["link_state"], link["module_temp_c"], link["tx_wait_ticks"]) == ("active", 41, 12)
    assert (link["peer_id"], link["peer_link"]) == ("0x0000000000000001", 2)
    assert not reading.rejected


def test_nmxt_labels_that_change_do_not_make_a_new_port() -> None:
    page = (
        'Link_Down{Node_GUID="0x1",Port_Number="5",down_blame="unknown"} 2\n'
        'Symbol_Errors{Node_GUID="0x1",Port_Number="5",down_blame="Local_phy"} 3\n'
        'Link_Down{Node_GUID="0x1",Port_Number="-1"} 2\n'
    )
    reading = read("nmxt", page)
    link = only(reading, "nvlink")
    assert (link["link_downs"], link["symbol_errors"], link.get("down_blame")) == (2, 3, None)
    assert reading.rejected == {("bad_label", "port"): 1}


# -- SHARP


@pytest.mark.parametrize(
    "body",
    [
        "# TYPE active_jobs gauge\nactive_jobs 3\nactive_sat_jobs{x='y'} 1\n".replace("'", '"')
        + "agg_nodes_in_invalid_state 2\n",
        "metadata_timestamp,active_jobs,active_sat_jobs,agg_nodes_in_invalid_state\n1,3,1,2\n",
        json.dumps({"active_jobs": 3, "active_sat_jobs": 1, "agg_nodes_in_invalid_state": 2}),
    ],
    ids=["prometheus", "csv", "json"],
)
def test_the_aggregation_manager(body: str) -> None:
    part = only(read("sharp", body, target="ufm-1"), "component")
    assert (part["manager_id"], part["component_id"], part["entity_type"]) == (
        "ufm-1", "sharp_am", "sharp_am",
    )  # fmt: skip
    assert part["sharp_active_jobs"] == 3
    assert (part["sharp_active_sat_jobs"], part["sharp_invalid_nodes"]) == (1, 2)


# -- text that was cut off


SYSTEM = "CA 'mlx5_0'\n\tNode GUID: 0x0c42a10300d9c078\n\tPort 1:\n"


@pytest.mark.parametrize(
    ("kind", "whole", "cut", "stream", "column"),
    [
        (
            "perfquery",
            "# Port extended counters: Lid 5 port 1\nPortXmitWait:....7\n",
            "PortXmitData:....................178791",
            "ib_port",
            "xmit_data_bytes",
        ),
        ("ufm", HEADER + ",x,0x1,0x1,3,250,99,0\n", ",x,0x1,0x1,4,17", "ib_port", ""),
        ("ufm", HEADER + ",x,0x1,0x1,3,250,99,0\r\n", ",x,0x1,0x1,4,17", "ib_port", ""),
        ("ibstat", SYSTEM + "\t\tState: Active\n", "\t\tRate: 2", "ib_port", "rate_gbps"),
        ("ibstat", SYSTEM + "\t\tRate: 200\n", "\t\tState: Act", "ib_port", "port_state"),
        ("ibswinfo", "temperature (C) | 45\n", "fan#1 (rpm)        | 84", "component", "fan_rpm"),
        ("sharp", "active_jobs,trees\n3,1\n", "17", "component", ""),
        (
            "ib_sysfs",
            "/sys/class/infiniband/a/ports/1/counters/link_downed:3\n",
            "/sys/class/infiniband/a/ports/1/counters/port_xmit_wait:17",
            "ib_port",
            "xmit_wait_ticks",
        ),
        (
            "ib_sysfs",
            "=== ./link_downed ===\n3\n",
            "=== ./port_xmit_wa",
            "ib_port",
            "xmit_wait_ticks",
        ),
    ],
)
def test_a_last_line_without_its_end_is_dropped(
    kind: str, whole: str, cut: str, stream: str, column: str
) -> None:
    reading = read(kind, whole + cut)
    row = only(reading, stream)
    assert row.get(column) is None
    assert reading.rejected == {("truncated_line", ""): 1}
    assert row == only(read(kind, whole), stream)


@pytest.mark.parametrize("kind", ["perfquery", "ibstat", "ibswinfo"])
def test_a_text_of_half_a_line_has_no_rows(kind: str) -> None:
    reading = read(kind, "CA 'mlx")
    assert not reading.tables
    assert reading.rejected == {("truncated_line", ""): 1}
    assert not read(kind, "").rejected
    assert not read(kind, "\n ").rejected
