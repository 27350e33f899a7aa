"""UFM telemetry as its stream sends it: one JSON record per port, with a time of its own.

Names are those of UFM's fabric telemetry, units and all: what it calls MB and Gb are bytes, as
its management packets show. The time around the records has no zone, as in the real stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from pipeline.hall import names
from pipeline.hall.fleet import Fleet, Ints
from pipeline.hall.rows import at_time
from pipeline.hall.view import View

# Contract column, name in a record; in the stream's order.
COUNTERS: tuple[tuple[str, str], ...] = (
    ("xmit_data_bytes", "Infiniband_MBOut_u_Gb"),
    ("rcv_data_bytes", "Infiniband_MBIn_u_Gb"),
    ("xmit_packets", "Infiniband_PckOut_u_Packets"),
    ("rcv_packets", "Infiniband_PckIn_u_Packets"),
    ("symbol_errors", "Infiniband_SymbolErrors_u_Errors"),
    ("link_error_recoveries", "Infiniband_LinkRecovers_u_Errors"),
    ("link_downs", "Infiniband_LinkDowned_u_Errors"),
    ("rcv_errors", "Infiniband_RcvErrors_u_Errors"),
    ("rcv_remote_physical_errors", "Infiniband_RcvRemotePhysErrors_u_Errors"),
    ("rcv_switch_relay_errors", "Infiniband_RcvSwRelayErrors_u_Errors"),
    ("xmit_discards", "Infiniband_XmtDiscards_u_Errors"),
    ("xmit_constraint_errors", "Infiniband_XmtConstraintErrors_u_Errors"),
    ("rcv_constraint_errors", "Infiniband_RcvConstraintErrors_u_Errors"),
    ("local_link_integrity_errors", "Infiniband_LinkIntegrityErrors_u_Errors"),
    ("excessive_buffer_overruns", "Infiniband_ExcBufOverrunErrors_u_Errors"),
    ("vl15_dropped", "Infiniband_VL15Dropped_u_Drops"),
    ("xmit_wait_ticks", "Infiniband_XmitWait_u_Ticks"),
)
BLOCKS: tuple[tuple[str, str], ...] = tuple(
    (f"fec_hist_{number}", f"hist{number}_u_count") for number in range(5)
)
GAUGES: tuple[tuple[str, str], ...] = (
    ("congested_gbps", "Infiniband_CBW_f_u_Gbps"),
    ("congested_percent", "Infiniband_Normalized_CBW_f_u_Percent"),
    ("sent_percent", "Infiniband_Normalized_MBOut_f_u_Percent"),
)
_ZERO = frozenset(names.UFM_ZERO_COLUMNS)


@dataclass(frozen=True)
class _Shard:
    """Ports of one instance, as numbers in the observation's order, and who they are."""

    ports: Ints
    records: list[dict[str, object]]


class UfmPages:
    """Renders what each instance would stream; see :func:`pipeline.hall.names.ufm_targets`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._shards: dict[int, _Shard] = {}

    def render(self, view: View, shard: int) -> bytes:
        """A whole message of one instance's ports."""
        known = self._shards.get(shard) or self._make(shard)
        self._shards[shard] = known
        columns: dict[str, list[int] | list[float]] = {}
        for part, fields in (("port", COUNTERS), ("ufm", BLOCKS)):
            for column, name in fields:
                columns[name] = (
                    [0] * known.ports.size
                    if column in _ZERO
                    else view.counter(part, column, known.ports).astype(np.int64).tolist()
                )
        for column, name in GAUGES:
            columns[name] = view.gauge("ufm", column, known.ports).tolist()
        at = view.before.at + view.share * (view.after.at - view.before.at)
        stamp = round(at * 1e6)
        seen = view.after.port_seen[known.ports]
        values = [
            {"timestamp": stamp, **known.records[number],
             **{name: column[number] for name, column in columns.items()}}
            for number in np.flatnonzero(seen).tolist()
        ]  # fmt: skip
        outer = at_time(at).strftime("%Y-%m-%d %H:%M:%S")
        return json.dumps({"timestamp": outer, "type": "full", "values": values}).encode()

    def _make(self, shard: int) -> _Shard:
        f = self._fleet
        n = f.gpus
        owner = np.concatenate([f.gpu_leaf, f.gpu_leaf, f.up_leaf, f.leaves + f.up_spine])
        ports = np.flatnonzero(names.ib_shards(f)[owner] == shard)
        number = np.concatenate([np.ones(n, int), f.gpu_leaf_port, f.up_port, f.spine_port])
        guids, called = f.leaf_guids + f.spine_guids, f.leaf_names + f.spine_names
        records: list[dict[str, object]] = []
        for port in ports.tolist():
            hca = port < n
            guid = f.hca_guids[port] if hca else guids[owner[port]]
            records.append(
                {
                    "source_id": guid, "node_guid": guid, "port_guid": guid,
                    "port_num": int(number[port]),
                    "node_description": names.hca_name(f, port) if hca else called[owner[port]],
                }
            )  # fmt: skip
        return _Shard(ports, records)
