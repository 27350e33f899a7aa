"""The table of sources says what the readers do: each name in it, and nothing else."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator

import pytest

from pipeline.collectors.reference import Entry, entries
from pipeline.collectors.registry import KINDS
from tests.collectors.capture_cases import CASES
from tests.collectors.fixtures import SEEDS
from tests.collectors.helpers import CONTRACTS, read
from tests.collectors.one_reading import WORDS, page
from tests.conftest import captures_folder

# Of every row, and not of the source.
BASE = {"cluster", "source", "sampled_at", "target"}
TABLE = {kind: list(entries(kind, CONTRACTS)) for kind in KINDS}


def named() -> Iterator[tuple[str, Entry, str]]:
    """Kind, entry and name of everything that a contract names."""
    for kind, found in TABLE.items():
        for entry in found:
            if (entry.stream, entry.column, entry.read) not in beside(kind):
                for name in re.findall(r"`([^`]+)`", entry.read):
                    yield kind, entry, name


def beside(kind: str) -> set[tuple[str, str, str]]:
    from pipeline.collectors.registry import reader

    return {
        (stream, column, text)
        for stream, said in getattr(reader(kind), "ALSO", {}).items()
        for text, column in said.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_something(kind: str) -> None:
    assert TABLE[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_each_name_fills_its_column(kind: str) -> None:
    tried = 0
    for of, entry, name in named():
        if of != kind:
            continue
        column = CONTRACTS[entry.stream].column(entry.column)
        text = column.type in ("label", "string")
        scale = float(entry.factor or 1)
        highest = column.range[1] if column.range else 1.0
        number = highest / 2 if highest < 1 else max(1, round(1 / scale))
        raw = WORDS.get(entry.column, "word") if text else f"{number:.15g}"
        reading = read(kind, page(kind, entry.stream, name, raw, text=text), target="0x1", host="h")
        values = reading.tables[entry.stream].column(entry.column).to_pylist()
        assert len(values) == 1, name
        assert values[0] is not None, (name, reading.rejected)
        if not text:
            assert float(values[0]) == pytest.approx(float(raw) * scale, rel=1e-6), name
        tried += 1
    assert tried or kind == "kmsg"


def sysfs(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"mlx5_0/{name.replace('__', '/')}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


def bms(object_type: str, point: str, path: str, value: object, **about: object) -> str:
    topic = f"{object_type}/{point}/{path}"
    messages = [
        {"topic": f"BMS/v1/PUB/Metadata/{topic}", "payload": about},
        {"topic": f"BMS/v1/PUB/Value/{topic}", "payload": {"value": value, "quality": 1}},
    ]
    return "".join(json.dumps(message) + "\n" for message in messages)


def sensor(kind: str, name: str = "Board", **more: object) -> dict[str, object]:
    return {
        "@odata.id": f"/redfish/v1/Chassis/Board/Sensors/{name}_{kind}",
        "@odata.type": "#Sensor.v1_9_0.Sensor", "Id": name, "Name": name, "ReadingType": kind,
        "Reading": 21.0, "Status": {"State": "Enabled", "Health": "OK"}, **more,
    }  # fmt: skip


CONTROL = {
    "@odata.id": "/redfish/v1/Chassis/HGX_GPU_0/Controls/ClockLimit_0",
    "@odata.type": "#Control.v1_5_0.Control", "ControlType": "FrequencyMHz",
    "SettingMin": 200, "SettingMax": 1900, "AllowableMin": 120, "AllowableMax": 2070,
}  # fmt: skip
FAN = {
    "@odata.id": "/redfish/v1/Chassis/Board/ThermalSubsystem/Fans/1",
    "@odata.type": "#Fan.v1_5_0.Fan", "SpeedPercent": {"Reading": 40.0, "SpeedRPM": 9000.0},
}  # fmt: skip
CDU = ["Secondary", "Supply"]
# Pages of what the others do not hold.
MORE: list[tuple[str, str | bytes]] = [
    ("dcgm", 'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",job_role="tp0",hpc_job="7"} 1\n'
             'DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-2",namespace="n",pod="p",container="c"} 1\n'
             'DCGM_FI_DEV_SM_CLOCK{gpu="3",UUID="GPU-3",GPU_I_ID="1",GPU_I_PROFILE="1g",'
             'Hostname="h"} 1\n'),
    ("nmxt", 'Link_Down{Node_GUID="0x1",Port_Number="1",link_partner_node_guid="0x2",'
             'link_partner_port_num="7",down_blame="local_phy"} 0\n'),
    ("ib_exporter", 'infiniband_switch_hardware_info{guid="0x1",firmware_version="1"} 1\n'
                    'infiniband_switch_power_supply_status_info{guid="0x1",psu="0",status="OK"} 1\n'
                    'infiniband_switch_port_symbol_error_total{guid="0x1",port="1"} 0\n'),
    ("node_exporter_ib", 'node_infiniband_state_id{device="a",port="1",link_layer="Ethernet"} 4\n'),
    ("ib_sysfs", sysfs(ports__1__lid="0x5a", ports__1__phys_state="5: LinkUp", node_guid="0x1")),
    ("perfquery", "# Port counters: Lid 5 port 1\nPortXmitWait:....4294967295\n"),
    ("ibswinfo", "product name | q\nfirmware version | 1\nPSU0 status | ERROR\nfan status | OK\n"),
    ("ufm", json.dumps({"values": [{"guid": "0x1_1", "name": "h mlx5_0",
                                    "PortRcvDataExtended_Rate": 4.0,
                                    "PortRcvPktsExtended_Rate": 1.0}]})),
    ("ufm", 'streaming_time_seconds{endpoint="e"} 1\n'),
    ("kmsg", "# boot_time=2026-01-01T00:00:00Z\n"
             "6,1,5,-;NVRM: Xid (PCI:0008:01:00): 79, GPU has fallen off the bus.\n"),
    *(("redfish", json.dumps(sensor(kind))) for kind in
      ("Power", "EnergyJoules", "Voltage", "Current", "Rotational", "Humidity", "Temperature")),
    ("redfish", json.dumps(CONTROL)),
    ("redfish", json.dumps(FAN)),
    ("redfish", json.dumps({
        "@odata.id": "/redfish/v1/Systems/1/Processors/GPU_0/Ports/NVLink_3",
        "@odata.type": "#Port.v1_9_0.Port", "LinkStatus": "LinkUp"})),
    ("redfish", json.dumps({
        "@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1/PrimaryCoolantConnectors/1",
        "@odata.type": "#CoolantConnector.v1_3_0.CoolantConnector", "Name": "c",
        "Status": {"State": "Enabled", "Health": "OK"}, "SupplyPressurekPa": 400.0,
        "ReturnPressurekPa": 300.0, "DeltaPressurekPa": 10.0})),
    ("redfish", json.dumps({
        "@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1",
        "@odata.type": "#CoolingUnit.v1_5_0.CoolingUnit", "Name": "c", "Status": {
            "State": "Enabled", "Health": "OK", "HealthRollup": "Critical", "Conditions": [
                {"Severity": "Critical", "ConditionType": "Alert", "Message": "pump"}]}})),
    ("redfish", json.dumps({
        "@odata.id": "/redfish/v1/Chassis/1/Oem/Nvidia/Policies/LeakDetectionPolicy",
        "@odata.type": "#NvidiaPolicy.v1_0_0.NvidiaPolicy", "PolicyEnabled": True,
        "PolicyReactions": [{"CommonReaction": "HardPowerOff"}]})),
    ("redfish", json.dumps({
        "@odata.id": "/redfish/v1/Chassis/1/LeakDetectors/1",
        "@odata.type": "#LeakDetector.v1_6_0.LeakDetector", "DetectorState": "Warning"})),
    ("redfish", json.dumps({
        "@odata.id": "/redfish/v1/Chassis/HGX_GPU_1/ThermalSubsystem/ThermalMetrics",
        "@odata.type": "#ThermalMetrics.v1_3_0.ThermalMetrics", "TemperatureReadingsCelsius": [
            {"Reading": 33.0, "DataSourceUri":
                f"/redfish/v1/Chassis/HGX_GPU_1/Sensors/HGX_GPU_1_{name}"}
            for name in ("TEMP_0", "TEMP_1", "DRAM_0_Temp_0")]})),
    *(("bms", bms("CDU", point, "c", 21.0, objectName="c", processArea=area))
      for point in ("LiquidTemperature", "LiquidPressure")
      for area in (CDU, ["Secondary", "Return"])),
    *(("bms", bms("CDU", point, "c", 21.0, objectName="c", processArea=CDU))
      for point in ("LiquidFlow", "LiquidDifferentialPressure", "ValvePosition", "PumpSpeed")),
    *(("bms", bms("CDU", point, "c", 21.0, objectName="c", processArea=CDU, isSetpoint=True))
      for point in ("LiquidTemperature", "LiquidFlow", "LiquidDifferentialPressure", "PumpSpeed")),
    ("bms", bms("CDU", "LiquidDifferentialPressure", "f", 5.0, processArea=["Filter"])),
    ("bms", bms("Rack", "RackLeakDetect", "r1", 0)),
    *(("bms", bms("Room", point, "x", 21.0)) for point in ("AirTemperature", "Humidity")),
]  # fmt: skip


def emitted(pages: list[tuple[str, str | bytes, str]]) -> set[tuple[str, str, str]]:
    """Kind, stream and column of everything that the readers make of the pages."""
    found = set()
    for kind, body, target in pages:
        for stream, table in read(kind, body, target=target).tables.items():
            for name in set(table.column_names) - BASE:
                if table.column(name).null_count < table.num_rows:
                    found.add((kind, stream, name))
    return found


def own_pages() -> list[tuple[str, str | bytes, str]]:
    return [(kind, body, "0x1") for kind, body in (*SEEDS, *MORE)]


IN_TABLE = {(kind, entry.stream, entry.column) for kind, found in TABLE.items() for entry in found}


def test_what_stands_beside_the_contracts_is_read() -> None:
    said = {(kind, stream, column) for kind in KINDS for stream, column, _ in beside(kind)}
    assert said - emitted(own_pages()) == set()


def test_nothing_is_read_that_the_table_does_not_name() -> None:
    assert emitted(own_pages()) - IN_TABLE == set()


def test_nothing_is_read_of_captures_that_the_table_does_not_name() -> None:
    folder = captures_folder()
    if not folder.is_dir():
        pytest.skip(f"no captures at {folder}: set RACKPULSE_CAPTURES")
    pages: list[tuple[str, str | bytes, str]] = [
        (case.kind, (folder / case.name).read_bytes(), case.args[-1] if case.args else "t")
        for case in CASES
    ]
    assert emitted(pages) - IN_TABLE == set()
