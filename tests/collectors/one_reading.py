"""A page of every kind that holds one reading under a name of the table of sources."""

from __future__ import annotations

import json

# Readings that are words, by column; others may be any.
WORDS = {"link_state": "1", "detector_state": "OK"}
_DCGM = {
    "gpu": 'gpu="0",UUID="GPU-1"',
    "nvlink": 'nvlink="3",gpu="0",gpu_uuid="GPU-1"',
    "component": 'nvswitch="0",Hostname="h"',
}


def page(kind: str, stream: str, name: str, value: str, *, text: bool = False) -> str:
    """A page with that reading and as little else as it takes.

    Args:
        text: the column is of words.
    """
    match kind:
        case "dcgm":
            labels = _DCGM[stream]
            if text and stream == "gpu":
                return f'DCGM_FI_DEV_SM_CLOCK{{{labels},{name}="{value}"}} 1\n'
            if "{link}" in name:
                return f"{name.replace('{link}', '3')}{{{_DCGM['gpu']}}} {value}\n"
            return f"{name}{{{labels}}} {value}\n"
        case "dcgm_dmon":
            entity = "GPU" if stream == "gpu" else "Switch"
            return f"#Entity   {name}\nID\n{entity} 0   {value}\n"
        case "nvml":
            fields = {name: float(value)}
            gpu: dict[str, object] = {"uuid": "GPU-1", "index": 0}
            if stream == "gpu":
                gpu["fields"] = fields
            else:
                gpu["links"] = [{"link": 3, "state": 1, "fields": fields}]
            return json.dumps({"gpus": [gpu]})
        case "nmxt" if name == "Module_Temperature":
            return f'Link_Down{{Node_GUID="0x1",Port_Number="1",{name}="{value}C"}} 0\n'
        case "nmxt":
            return f'{name}{{Node_GUID="0x1",Port_Number="1"}} {value}\n'
        case "ib_exporter":
            port = ',port="1"' if stream == "ib_port" else ""
            infix = "port_" if port else ""
            name = name.replace("infiniband_(switch|hca)_(port_)", f"infiniband_switch_{infix}")
            return f'{name}{{guid="0x1"{port},switch="s"}} {value}\n'
        case "node_exporter_ib":
            return f'{name}{{device="mlx5_0",port="1"}} {value}\n'
        case "ib_sysfs":
            folder = "" if name == "rate" else "counters/"
            return f"/sys/class/infiniband/mlx5_0/ports/1/{folder}{name}:{value}\n"
        case "perfquery":
            return f"# Port extended counters: Lid 5 port 1\n{name}:....{value}\n"
        case "ibstat":
            return f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\t{name}: {value}\n"
        case "ibswinfo":
            name = name.replace("fan ", "fan#1 ").replace("fan.", "fan#1.")
            head = "PSU0 status | OK\n     " if name == "power (W)" else ""
            return f"{head}{name} | {value}\n"
        case "ufm" if stream == "component":
            return f'{name}{{endpoint="e"}} {value}\n'
        case "ufm":
            return f"node_guid,port_num,{name}\n0x1,1,{value}\n"
        case "sharp":
            return f"{name} {value}\n"
        case "redfish":
            return _resource(stream, name, value)
        case "bms":
            topic = f"BMS/v1/PUB/Value/Rack/{name}/r1"
            payload = {"value": float(value), "quality": 1}
            return json.dumps({"topic": topic, "payload": payload})
    raise AssertionError(f"say here how a page of {kind} looks")


def _resource(stream: str, name: str, value: str) -> str:
    try:
        reading: object = float(value)
    except ValueError:
        reading = value
    path, kind = {
        "coolant": ("/redfish/v1/ThermalEquipment/CDUs/1/Pumps/1", "Pump.v1_2_0.Pump"),
        "component": (
            "/redfish/v1/Systems/1/Processors/GPU_0/ProcessorMetrics",
            "ProcessorMetrics.v1_6_0.ProcessorMetrics",
        ),
        "nvlink": (
            "/redfish/v1/Systems/1/Processors/GPU_0/Ports/NVLink_3/Metrics",
            "PortMetrics.v1_5_0.PortMetrics",
        ),
    }[stream]
    if name.endswith("Duration"):
        reading = f"PT{value}S"
    if name == "LinkStatus":
        reading = "LinkUp"
    return json.dumps({"@odata.id": path, "@odata.type": f"#{kind}", "Id": "1", name: reading})
