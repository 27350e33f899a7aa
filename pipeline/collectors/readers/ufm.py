"""Telemetry of UFM: JSON records, the REST top-x answer, CSV, and Prometheus text.

Records carry their own time in microseconds; the time around them has no zone and is not used.
Field names carry units that are not true (see the contract). Streams are sparse: a counter
that did not change is left out, and so it is missing here. A cache that is replayed has old
times: the rows keep them, and a note says so. A top-x answer whose bytes per second are
exactly four times its packets per second is stored as it came and marked.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from functools import partial

from pipeline.collectors.fabric import normal_guid, port_number
from pipeline.collectors.fill import fill, parse_into
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading, whole_lines
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "ufm"
SOURCE = "ufm"

CONTRACT_SOURCES = ("ufm", "ufm_words")
# What is read beside the names in the contracts, by stream: where it stands, and its column.
ALSO = {
    "ib_port": {
        "`node_guid`, `guid`": "guid",
        "`port_num`, `port`, `Port_Number`; else behind the GUID": "port",
        "always `InfiniBand`": "link_layer",
        "`node_description`, `name`": "node_name",
        "the adapter in that name": "device",
        "whether there is one": "side",
        "the host in that name, unless the target names its host": "host",
        "bytes that are four times the packets": "quality",
    },
    "component": {
        "the target's name": "manager_id",
        "`endpoint`": "component_id",
        "always `ufm_telemetry`": "entity_type",
    },
}
MAX_RECORDS = 200_000
STALE_MS = 600_000
_GUID_AND_PORT = re.compile(r"(.+)_(\d{1,5})")
_DEVICE = re.compile(r"(\S+) ((?:mlx|ib|roce)\S*)")


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream ib_port, and component for the exporter's words about itself."""
    return _Ufm(page, contracts).read()


class _Ufm:
    def __init__(self, page: Page, contracts: Contracts) -> None:
        self.page = page
        self.reading = Reading()
        # UFM reads the 64-bit counters.
        self.ports = Grid(
            fields(contracts, "ib_port", SOURCE, "ufm_words"), page, self.reading,
            source=SOURCE, wide=True,
        )  # fmt: skip
        self.parts = Grid(fields(contracts, "component", SOURCE), page, self.reading, source=SOURCE)
        self.newest_ms: int | None = None

    def read(self) -> Reading:
        body = self.page.body.lstrip(b"\xef\xbb\xbf \t\r\n")
        head = body[:8_192].split(b"\n", 1)[0]
        if body[:1] in (b"{", b"["):
            self._json(body)
        elif b"," in head and b"{" not in head and (b"port_num" in head or b"node_guid" in head):
            self._csv(body)
        else:
            self._prometheus()
        self._say_stale()
        for stream, grid in (("ib_port", self.ports), ("component", self.parts)):
            table = grid.table()
            if table is not None:
                self.reading.tables[stream] = table
        return self.reading

    # -- the four forms

    def _json(self, body: bytes) -> None:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            self.reading.reject("bad_json")
            return
        records = answer.get("values", [answer]) if isinstance(answer, dict) else answer
        self._records(records if isinstance(records, list) else [])

    def _csv(self, body: bytes) -> None:
        text = io.StringIO(whole_lines(body, self.reading), newline="")
        try:
            self._records(csv.DictReader(text))
        except csv.Error:
            self.reading.reject("bad_line")

    def _prometheus(self) -> None:
        text = parse_into(self.reading, self.page.body, self.page.content_type)
        fill(self.ports, text, self.ports.fields.by_name, [
            partial(self._row, labels)
            if "port_num" in labels or "port" in labels or "_" in labels.get("guid", "")
            else None
            for labels in text.labels
        ])  # fmt: skip
        fill(self.parts, text, self.parts.fields.by_name, [
            partial(self._endpoint, labels) if labels.get("endpoint") else None
            for labels in text.labels
        ])  # fmt: skip

    def _records(self, records: Iterable[object]) -> None:
        known = self.ports.fields.by_name
        for number, record in enumerate(records):
            if number >= MAX_RECORDS:
                self.reading.note("too many records: the rest is left out")
                break
            if not isinstance(record, dict):
                self.reading.reject("bad_record")
                continue
            time_ms = self._time(record.get("timestamp"))
            row = -1 if time_ms == -1 else self._row(record, time_ms)
            if row < 0:
                continue
            for name, value in record.items():
                field = known.get(name) if isinstance(name, str) else None
                if field is None or value is None or value == "":
                    continue
                if isinstance(value, (int, float, str)):
                    self.ports.put(row, field, value)
                else:
                    self.reading.reject("not_a_number", self.ports.fields.columns[field].name)
            self._sanity(row, record)

    # -- what a record is of

    def _row(self, record: Mapping[str, object], time_ms: int | None) -> int:
        guid_text, port_text = str(record.get("node_guid") or record.get("guid") or ""), ""
        for key in ("port_num", "port", "Port_Number"):
            port_text = port_text or str(record.get(key) or "")
        together = _GUID_AND_PORT.fullmatch(guid_text)
        if together:
            guid_text, port_text = together.groups()
        guid = normal_guid(guid_text)
        if guid is None:
            self.reading.reject("no_identity", "guid")
            return -1
        port = port_number(port_text, self.reading)
        if port is None:
            return -1
        row = self.ports.row((guid, port), time_ms)
        self.ports.label(row, "link_layer", "InfiniBand")
        name = record.get("node_description") or record.get("name")
        if isinstance(name, str):
            self.ports.label(row, "node_name", name)
            device = _DEVICE.fullmatch(name)
            if device:
                self.ports.label(row, "device", device.group(2))
                self.ports.label(row, "side", "hca")
                if self.page.host is None:
                    self.ports.label(row, "host", device.group(1))
        return row

    def _endpoint(self, labels: dict[str, str], time_ms: int | None) -> int:
        row = self.parts.row((self.page.target, labels["endpoint"]), time_ms)
        self.parts.label(row, "entity_type", "ufm_telemetry")
        return row

    def _time(self, text: object) -> int | None:
        """A record's time in ms; None without one, -1 where it is none."""
        if text is None or text == "":
            return None
        try:
            time_ms = int(str(text)) // 1000
        except ValueError:
            self.reading.reject("time_out_of_range", "sampled_at")
            return -1
        if not self.ports.time_ok(time_ms):
            return -1
        self.newest_ms = max(time_ms, self.newest_ms or 0)
        return time_ms

    def _say_stale(self) -> None:
        if self.newest_ms is not None:
            age_ms = int(self.page.received_at.timestamp() * 1000) - self.newest_ms
            if age_ms > STALE_MS:
                self.reading.note("the newest record is old: a cache that is replayed")

    def _sanity(self, row: int, record: Mapping[str, object]) -> None:
        for way in ("Rcv", "Xmit"):
            data = record.get(f"Port{way}DataExtended_Rate")
            packets = record.get(f"Port{way}PktsExtended_Rate")
            if (
                isinstance(data, float) and isinstance(packets, float)
                and packets > 0 and abs(data / packets - 4) < 1e-9
            ):  # fmt: skip
                self.ports.label(row, "quality", "bytes_are_4x_packets")
                self.reading.note("bytes per second are exactly 4 x packets per second")
