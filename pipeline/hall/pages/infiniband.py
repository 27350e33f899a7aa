"""infiniband_exporter pages: one for each rail's leaves with their adapters, one for spines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import names
from pipeline.hall.fleet import Fleet, Ints
from pipeline.hall.pages.text import go_whole
from pipeline.hall.view import View

# Contract column, exporter's suffix, counter's name in the management datagram.
FIELDS: tuple[tuple[str, str, str], ...] = (
    ("excessive_buffer_overruns", "excessive_buffer_overrun_errors",
     "ExcessiveBufferOverrunErrors"),
    ("link_downs", "link_downed", "LinkDownedCounter"),
    ("link_error_recoveries", "link_error_recovery", "LinkErrorRecoveryCounter"),
    ("local_link_integrity_errors", "local_link_integrity_errors", "LocalLinkIntegrityErrors"),
    ("qp1_dropped", "qp1_dropped", "QP1Dropped"),
    ("rcv_constraint_errors", "receive_constraint_errors", "PortRcvConstraintErrors"),
    ("rcv_data_bytes", "receive_data_bytes", "PortRcvData"),
    ("rcv_errors", "receive_errors", "PortRcvErrors"),
    ("rcv_packets", "receive_packets", "PortRcvPkts"),
    ("rcv_remote_physical_errors", "receive_remote_physical_errors",
     "PortRcvRemotePhysicalErrors"),
    ("rcv_switch_relay_errors", "receive_switch_relay_errors", "PortRcvSwitchRelayErrors"),
    ("symbol_errors", "symbol_error", "SymbolErrorCounter"),
    ("xmit_constraint_errors", "transmit_constraint_errors", "PortXmitConstraintErrors"),
    ("xmit_data_bytes", "transmit_data_bytes", "PortXmitData"),
    ("xmit_discards", "transmit_discards", "PortXmitDiscards"),
    ("xmit_packets", "transmit_packets", "PortXmitPkts"),
    ("xmit_wait_ticks", "transmit_wait", "PortXmitWait"),
    ("vl15_dropped", "vl15_dropped", "VL15Dropped"),
)  # fmt: skip
_ZERO = frozenset(names.IB_ZERO_COLUMNS)
_Peer = Callable[[int], str]


@dataclass(frozen=True)
class _Shard:
    """Ports of one page, as numbers in the observation's order, with their label blocks."""

    switch_ports: Ints
    switch_labels: list[str]
    switch_uplinks: list[str]
    hca_ports: Ints
    hca_labels: list[str]
    hca_guids: list[str]
    hca_uplinks: list[str]
    switches: Ints
    switch_info: list[str]
    switch_guids: list[str]
    hca_info: list[str]


class InfinibandPages:
    """Renders pages by shard; see :func:`pipeline.hall.names.ib_targets`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._shards: dict[int, _Shard] = {}

    def render(self, view: View, shard: int) -> bytes:
        """The page of one shard."""
        known = self._shards.get(shard) or self._make(shard)
        self._shards[shard] = known
        up = ~np.isnan(view.gauge("port", "rate_gbps", slice(None)))
        hcas_seen = view.after.port_seen[known.hca_ports]
        parts: list[str] = []
        _head(parts, "infiniband_switch_info", "gauge", "Infiniband switch information")
        parts.extend(f"infiniband_switch_info{label} 1\n" for label in known.switch_info)
        self._counters(parts, view, "switch", known.switch_ports, known.switch_labels, None)
        own_up = up[known.switch_ports]
        name = "infiniband_switch_port_rate_bytes_per_second"
        _head(parts, name, "gauge", "Infiniband switch port rate")
        rate = go_whole(c.LINE_BYTES_PER_S)
        parts.extend(
            f"{name}{label} {rate}\n"
            for label, there in zip(known.switch_labels, own_up, strict=True)
            if there
        )
        name = "infiniband_switch_uplink_info"
        _head(parts, name, "gauge", "Infiniband switch uplink information")
        parts.extend(
            f"{name}{label} 1\n"
            for label, there in zip(known.switch_uplinks, own_up, strict=True)
            if there
        )
        name = "infiniband_switch_temperature_celsius"
        _head(parts, name, "gauge", "Infiniband switch temperature celsius")
        temps = view.gauge("switch", "temp_c", known.switches)
        parts.extend(
            f'{name}{{guid="{guid}"}} {int(value)}\n'
            for guid, value in zip(known.switch_guids, temps, strict=True)
        )
        if known.hca_ports.size:
            _head(parts, "infiniband_hca_info", "gauge", "Infiniband HCA information")
            parts.extend(f"infiniband_hca_info{label} 1\n" for label in known.hca_info)
            self._counters(parts, view, "hca", known.hca_ports, known.hca_labels, hcas_seen)
            name = "infiniband_hca_rate_bytes_per_second"
            _head(parts, name, "gauge", "Infiniband HCA rate")
            parts.extend(
                f'{name}{{guid="{guid}"}} {rate}\n'
                for guid, there in zip(known.hca_guids, hcas_seen, strict=True)
                if there
            )
            name = "infiniband_hca_uplink_info"
            _head(parts, name, "gauge", "Infiniband HCA uplink information")
            parts.extend(
                f"{name}{label} 1\n"
                for label, there in zip(known.hca_uplinks, hcas_seen, strict=True)
                if there
            )
        return "".join(parts).encode()

    def _counters(
        self, parts: list[str], view: View, side: str, ports: Ints, labels: list[str],
        seen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None,
    ) -> None:  # fmt: skip
        for column, suffix, datagram in FIELDS:
            name = f"infiniband_{side}_port_{suffix}_total"
            title = "HCA" if side == "hca" else side
            _head(parts, name, "counter", f"Infiniband {title} port {datagram}")
            if column in _ZERO:
                texts = ["0"] * ports.size
            else:
                values = view.counter("port", column, ports)
                texts = [go_whole(value) for value in values.tolist()]
            if seen is None:
                parts.extend(
                    f"{name}{label} {text}\n" for label, text in zip(labels, texts, strict=True)
                )
            else:
                parts.extend(
                    f"{name}{label} {text}\n"
                    for label, text, there in zip(labels, texts, seen, strict=True)
                    if there
                )

    def _make(self, shard: int) -> _Shard:
        f = self._fleet
        n, links = f.gpus, f.fabric_links
        spines = shard == c.RAILS
        if spines:
            hcas = np.zeros(0, dtype=np.int64)
            ports = np.arange(2 * n + links, 2 * n + 2 * links)
            switches = f.leaves + np.arange(f.spines)
        else:
            hcas = np.flatnonzero(f.gpu_slot == shard)
            up = np.flatnonzero(f.up_leaf // f.leaves_per_rail == shard)
            ports = np.concatenate([n + hcas, 2 * n + up])
            switches = shard * f.leaves_per_rail + np.arange(f.leaves_per_rail)
        guids, called = f.leaf_guids + f.spine_guids, f.leaf_names + f.spine_names
        owner, number, peer = self._port_tables()
        labels, uplinks = [], []
        for port in ports.tolist():
            switch = int(owner[port])
            labels.append(f'{{guid="{guids[switch]}",port="{int(number[port])}"}}')
            uplinks.append(
                f'{{guid="{guids[switch]}",port="{int(number[port])}",switch="{called[switch]}",'
                + peer(port)
            )
        return _Shard(
            switch_ports=ports,
            switch_labels=labels,
            switch_uplinks=uplinks,
            hca_ports=hcas,
            hca_labels=[f'{{guid="{f.hca_guids[h]}",port="1"}}' for h in hcas],
            hca_guids=[f.hca_guids[h] for h in hcas],
            hca_uplinks=[
                f'{{guid="{f.hca_guids[h]}",hca="{names.hca_name(f, int(h))}",port="1",'
                f'uplink="{called[f.gpu_leaf[h]]}",uplink_guid="{guids[f.gpu_leaf[h]]}",'
                f'uplink_lid="{n + f.gpu_leaf[h] + 1}",uplink_port="{f.gpu_leaf_port[h]}",'
                'uplink_type="SW"}'
                for h in hcas
            ],
            switches=switches,
            switch_info=[
                f'{{guid="{guids[s]}",lid="{n + s + 1}",switch="{called[s]}"}}' for s in switches
            ],
            switch_guids=[guids[s] for s in switches],
            hca_info=[
                f'{{guid="{f.hca_guids[h]}",hca="{names.hca_name(f, int(h))}",lid="{h + 1}"}}'
                for h in hcas
            ],
        )

    def _port_tables(self) -> tuple[Ints, Ints, _Peer]:
        """Switch and port number of each switch port, and the text about its far end."""
        f = self._fleet
        n, links = f.gpus, f.fabric_links
        none = np.full(n, -1)
        owner = np.concatenate([none, f.gpu_leaf, f.up_leaf, f.leaves + f.up_spine])
        number = np.concatenate([none, f.gpu_leaf_port, f.up_port, f.spine_port])

        def peer(port: int) -> str:
            if port < 2 * n:
                hca = port - n
                return (
                    f'uplink="{names.hca_name(f, hca)}",uplink_guid="{f.hca_guids[hca]}",'
                    f'uplink_lid="{hca + 1}",uplink_port="1",uplink_type="CA"}}'
                )
            link = (port - 2 * n) % links
            if port < 2 * n + links:
                far, far_port = f.leaves + f.up_spine[link], f.spine_port[link]
            else:
                far, far_port = f.up_leaf[link], f.up_port[link]
            guid = f.leaf_guids[far] if far < f.leaves else f.spine_guids[far - f.leaves]
            called = f.leaf_names[far] if far < f.leaves else f.spine_names[far - f.leaves]
            return (
                f'uplink="{called}",uplink_guid="{guid}",uplink_lid="{n + far + 1}",'
                f'uplink_port="{far_port}",uplink_type="SW"}}'
            )

        return owner, number, peer


def _head(parts: list[str], name: str, kind: str, text: str) -> None:
    parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
