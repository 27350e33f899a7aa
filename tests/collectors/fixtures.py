"""Small pages of our own in the shapes of every kind, for fuzzing."""

from __future__ import annotations

import io
import json
import tarfile

GPU = (
    'gpu="{g}",UUID="GPU-0000000{g}-aaaa",pci_bus_id="0000000{g}:01:00.0",device="nvidia{g}",'
    'modelName="NVIDIA GB300",Hostname="h1",DCGM_FI_DRIVER_VERSION="580.1",hpc_job="42"'
)
DCGM = "".join(
    f"# HELP {name} Some text.\n# TYPE {name} gauge\n"
    + "".join(f"{name}{{{GPU.format(g=g)}}} {value}\n" for g in range(4))
    for name, value in {
        "DCGM_FI_DEV_SM_CLOCK": 1965, "DCGM_FI_DEV_POWER_USAGE": "1012.250000",
        "DCGM_FI_DEV_MEMORY_TEMP": "9223372036854775794", "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_PROF_SM_ACTIVE": "0.873210", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 15152422938,
        "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT": "1.5e-254",
        "DCGM_FI_PROF_NVLINK_L3_TX_BYTES": 123456789,
    }.items()
) + "".join(
    f'{name}{{nvlink="{n}",gpu="0",gpu_uuid="GPU-0",hostname="h1"}} 1\n'
    for n in range(3)
    for name in ("DCGM_FI_DEV_NVLINK_PPCNT_IBPC_PORT_XMIT_WAIT", "DCGM_FI_DEV_NVLINK_GET_STATE")
) + (
    'DCGM_FI_DEV_CPU_TEMP_CURRENT{cpu="0",Hostname="h1"} 51.5\n'
    'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="nvswitch0",Hostname="h1"} 41\n'
)  # fmt: skip

DMON = (
    "#Entity   SMCLK   POWER     MMTMP\nID\n"
    "GPU 0     1965    1012.250  61\nGPU 1     1950    N/A       60\nSwitch 0   1   2   3\n"
)

NMXT = "".join(
    f'{name}{{Node_GUID="0x1234",Port_Number="{port}",down_blame="Unknown",'
    f'Module_Temperature="37C"}} {value}\n'
    for port in (1, 2)
    for name, value in {"Effective_BER": "1.5e-254", "Link_Down": 3, "Symbol_Errors": 10}.items()
)

IB_EXPORTER = "".join(
    f'infiniband_switch_port_{name}{{guid="0x506b4b0000000001",port="{port}"}} {value}\n'
    for port in (1, 2)
    for name, value in {
        "transmit_data_bytes_total": "7.1516662870894e+14", "transmit_wait_total": 4294967295,
        "rate_bytes_per_second": "1e+11", "link_downed_total": 255,
    }.items()
) + (
    'infiniband_switch_info{guid="0x506b4b0000000001",lid="2052",switch="s1"} 1\n'
    'infiniband_switch_power_supply_watts{guid="0x506b4b0000000001",psu="0"} 154\n'
    'infiniband_switch_fan_status_info{guid="0x506b4b0000000001",status="ERROR"} 1\n'
    'infiniband_hca_info{guid="0x2",hca="h1 HCA-1",lid="7"} 1\n'
    'infiniband_hca_rate_bytes_per_second{guid="0x2"} 1e+11\n'
    'infiniband_hca_uplink_info{guid="0x2",port="1",hca="h1 HCA-1",uplink="s1",'
    'uplink_guid="0x506b4b0000000001",uplink_lid="1",uplink_port="2",uplink_type="SW"} 1\n'
)  # fmt: skip

NODE_EXPORTER = (
    'node_infiniband_state_id{device="mlx5_0",port="1"} 4\n'
    'node_infiniband_physical_state_id{device="mlx5_0",port="1"} 5\n'
    'node_infiniband_port_transmit_wait_total{device="mlx5_0",port="1"} 4.294967295e+09\n'
    'node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 1.8527668e+07\n'
    'node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10\n'
)

PERFQUERY = (
    "# Port extended counters: Lid 2052 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)\n"
    "PortSelect:......................1\nPortXmitData:....................178791657177235\n"
    "PortXmitWait:....................41864608\nLinkDownedCounter:...............1\n"
)

IBSTAT = (
    "CA 'mlx5_4'\n\tNode GUID: 0x0c42a150d991c078\n\tPort 1:\n\t\tState: Active\n"
    "\t\tPhysical state: LinkUp\n\t\tRate: 800\n\t\tBase lid: 90\n\t\tLink layer: InfiniBand\n"
    "Infiniband device 'mlx5_0' port 1 status:\n\tdefault gid:\t fe80:0:0:0:966d:aeff:fe00:1\n"
    "\tstate:\t 4: ACTIVE\n\trate:\t 400 Gb/sec (4X NDR)\n"
)

IBSWINFO = (
    "GUID               | 0x1c34daae6e940540\nuptime (d-h:m:s)   | 160d-10:38:53\n"
    "PSU0 status        | OK\n     DC power      | ERROR\n     power (W)     | 72\n"
    "temperature (C)    | 45\nfan status         | ERROR\nfan#1 (rpm)        | 8493\n"
)

UFM = json.dumps(
    {
        "values": [
            {
                "timestamp": 1767268800000000,
                "node_guid": "0x248a07be8c9d19a0",
                "port_num": port,
                "Infiniband_MBOut_u_Gb": 4086720,
                "Infiniband_XmitWait_u_Ticks": 7,
                "Infiniband_Normalized_CBW_f_u_Percent": 0.25,
            }
            for port in (1, 2)
        ]
    }
)
UFM_CSV = (
    "timestamp,node_guid,port_num,PortXmitDataExtended,Raw_BER\n"
    "1767268800000000,0x1,3,250,1.5e-254\n"
)

NVML = json.dumps(
    {
        "driver_version": "580.1",
        "gpus": [
            {
                "uuid": "GPU-0",
                "index": 0,
                "pci_bus_id": "0:1:0",
                "name": "NVIDIA GB300",
                "fields": {"DCGM_FI_DEV_SM_CLOCK": 1965, "DCGM_FI_DEV_BOARD_POWER_WATTS": 1012.25},
                "links": [
                    {"link": 0, "state": 1, "fields": {"DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES": 7}}
                ],
            }
        ],
    }
)


def sysfs_tar() -> bytes:
    files = {
        "mlx5_0/node_guid": "0c42:a103:00d9:c078",
        "mlx5_0/ports/1/state": "4: ACTIVE",
        "mlx5_0/ports/1/rate": "800 Gb/sec (4X XDR)",
        "mlx5_0/ports/1/link_layer": "InfiniBand",
        "mlx5_0/ports/1/counters/port_xmit_data": "250",
        "mlx5_0/ports/1/counters/port_xmit_wait": "4294967295",
        "mlx5_0/ports/1/counters/link_downed": "N/A (no PMA)",
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


SYSFS_GREP = (
    "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:3\n"
    "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data:N/A (no PMA)\n"
)
SYSFS_DUMP = "=== ./link_downed ===\n255\n\n=== ./port_xmit_data ===\n1\n"
OPENMETRICS = (
    '# TYPE a counter\n# HELP a text\na_total{b="c"} 1 17 # {d="e"} 0.5\n# TYPE h histogram\n'
    'h_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_count 2\nh_sum 3\n# EOF\n'
)

SHARP = "# TYPE active_jobs gauge\nactive_jobs 3\nagg_nodes_in_invalid_state 1\n"
SHARP_CSV = "metadata_timestamp,active_jobs,active_sat_jobs\n1767268800,3,1\n"

SEEDS: list[tuple[str, bytes]] = [
    ("dcgm", DCGM.encode()),
    ("dcgm", OPENMETRICS.encode()),
    ("dcgm_dmon", DMON.encode()),
    ("nmxt", NMXT.encode()),
    ("ib_exporter", IB_EXPORTER.encode()),
    ("node_exporter_ib", NODE_EXPORTER.encode()),
    ("perfquery", PERFQUERY.encode()),
    ("ibstat", IBSTAT.encode()),
    ("ibswinfo", IBSWINFO.encode()),
    ("ufm", UFM.encode()),
    ("ufm", UFM_CSV.encode()),
    ("nvml", NVML.encode()),
    ("sharp", SHARP.encode()),
    ("sharp", SHARP_CSV.encode()),
    ("ib_sysfs", sysfs_tar()),
    ("ib_sysfs", SYSFS_GREP.encode()),
    ("ib_sysfs", SYSFS_DUMP.encode()),
]
