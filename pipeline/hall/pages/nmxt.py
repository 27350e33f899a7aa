"""NMX-T pages of NVLink switch trays: two ASICs with 72 ports each."""

from __future__ import annotations

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall.fleet import Fleet
from pipeline.hall.pages.text import go_whole
from pipeline.hall.view import View

# Contract column, name, counter.
FIELDS: tuple[tuple[str, str, bool], ...] = (
    ("effective_ber", "Effective_BER", False),
    ("symbol_ber", "Symbol_BER", False),
    ("symbol_errors", "Symbol_Errors", True),
    ("link_downs", "Link_Down", True),
    ("recovery_events", "Link_Error_Recovery", True),
    ("tx_bytes", "Tx_Bytes", True),
    ("rx_bytes", "Rx_Bytes", True),
)


class NmxtPages:
    """Renders pages; the tray is counted over the whole fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._labels: dict[int, list[str]] = {}

    def render(self, view: View, tray: int) -> bytes:
        """The page of one switch tray."""
        rack, number = divmod(tray, c.SWITCH_TRAYS)
        gpus = slice(rack * c.GPUS_PER_RACK, (rack + 1) * c.GPUS_PER_RACK)
        labels = self._port_labels(tray, rack, number)
        parts = []
        for column, name, counter in FIELDS:
            values = (view.counter if counter else view.gauge)("switch_link", column, gpus)
            # Links 2n and 2n+1 of every GPU end on this tray's two ASICs.
            own = np.concatenate([values[:, 2 * number], values[:, 2 * number + 1]]).tolist()
            kind = "counter" if counter else "gauge"
            parts.append(f"# HELP {name} {name.replace('_', ' ')}\n# TYPE {name} {kind}\n")
            show = go_whole if counter else repr
            parts.extend(
                f"{name}{label} {show(value)}\n" for label, value in zip(labels, own, strict=True)
            )
        return "".join(parts).encode()

    def _port_labels(self, tray: int, rack: int, number: int) -> list[str]:
        if tray not in self._labels:
            first = rack * c.ASICS_PER_RACK + 2 * number
            self._labels[tray] = [
                f'{{Port_Number="{port}", Node_GUID="{self._fleet.asic_guids[asic]}", '
                'Port_State="Up"}'
                for asic in (first, first + 1)
                for port in range(1, c.GPUS_PER_RACK + 1)
            ]
        return self._labels[tray]
