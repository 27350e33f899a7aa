"""Rows of the stream ``event``: what a collector makes of the hall's kernel logs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import pyarrow as pa

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.placement import Placer
from pipeline.collectors.readers import kmsg as reader
from pipeline.hall import kmsg, names
from pipeline.hall.faults import Fault
from pipeline.hall.fleet import Fleet
from pipeline.hall.layout import topology_of
from pipeline.hall.rows import at_time
from pipeline.streams import Contracts
from pipeline.streams.arrow import conform


class EventMaker:
    """Reads the hall's own log lines with the collectors' reader, and places them."""

    def __init__(self, fleet: Fleet, contracts: Contracts) -> None:
        self._fleet = fleet
        self._contracts = contracts
        self._placer: Placer | None = None

    def between(self, faults: Iterable[Fault], since: float, until: float) -> pa.Table | None:
        """Events after ``since`` and up to ``until``; None where there are none."""
        lines = kmsg.lines_of(self._fleet, faults, since, until)
        if not lines:
            return None
        readings = []
        for tray, own in groupby(sorted(lines, key=lambda line: line.tray), lambda x: x.tray):
            host = self._fleet.hosts[tray]
            body = "".join(f"{kmsg.stamp(line.at)} {line.text}\n" for line in own).encode()
            page = Page(
                body, names.kmsg_target(host), at_time(until), self._fleet.cluster, host=host
            )
            readings.append(reader.read(page, self._contracts))
        found = Reading.merged(readings).tables.get("event")
        if found is None:
            return None
        if self._placer is None:
            self._placer = Placer(self._contracts, topology_of(self._fleet))
        return conform(self._contracts["event"], self._placer.place(found, "event"))
