"""The hours before a hall's first start: rows with past times, straight to Kafka.

Rows are sent in windows of two minutes. After some windows the outlet is flushed and the hall's
state is saved with the numbers sent. A start that was killed goes on from the last save: it
makes the same windows with the same numbers again, which the writer drops where it has them,
so nothing is doubled and nothing is missing. The end of the last, shorter window is saved
before it is sent, for the same reason.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from pipeline.bus.arrow_body import write_body
from pipeline.bus.codec import split
from pipeline.clock import Clock
from pipeline.hall.events import EventMaker
from pipeline.hall.kafka_outlet import Body, KafkaOutlet
from pipeline.hall.live import STEP_S, LiveHall, aligned
from pipeline.hall.messages import MessageMaker
from pipeline.hall.rows import RowMaker
from pipeline.settings import Settings
from pipeline.streams import Contracts

log = logging.getLogger("rackpulse.hall")

WINDOW_S = 120.0
LINKS_EVERY_S = 60.0  # of NVLinks: they are nine in ten entities and change little
SAVE_EVERY = 8  # windows


class Outlet(Protocol):
    """What history is sent through."""

    numbers: dict[str, int]
    rows: int

    def send(self, bodies: Iterable[Body]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


OutletMaker = Callable[[str, dict[str, int]], Outlet]


def kafka_outlet_maker(settings: Settings, contracts: Contracts, clock: Clock) -> OutletMaker:
    """Makes outlets to the Kafka of ``settings``."""

    def make(collector_id: str, numbers: dict[str, int]) -> Outlet:
        return KafkaOutlet(settings, contracts, collector_id, clock, numbers)

    return make


class History:
    """Writes the history of a live hall, once.

    Args:
        stopped: looked at between windows; true ends the work, to be resumed by a later start.
        fabric: who reads the fabric; see :class:`pipeline.hall.rows.RowMaker`.
    """

    def __init__(
        self,
        live: LiveHall,
        contracts: Contracts,
        clock: Clock,
        make_outlet: OutletMaker,
        stopped: Callable[[], bool] = lambda: False,
        *,
        fabric: str = "ib_exporter",
    ) -> None:
        self._live = live
        self._clock = clock
        self._make_outlet = make_outlet
        self._stopped = stopped
        self._rows = RowMaker(live.fleet, contracts, fabric)
        self._messages = MessageMaker(self._rows)
        self._contracts = contracts
        self._events = EventMaker(live.fleet, contracts)
        self.done_share = 0.0

    @property
    def needed(self) -> bool:
        """Whether history has still to be written."""
        return not self._live.history.get("done", True)

    def write(self) -> bool:
        """Write what is missing; False when it was stopped before the end.

        Raises:
            RackpulseError: Kafka does not take the rows.
        """
        plan = self._live.history
        if "collector" not in plan:
            plan["collector"] = f"hall-history.{secrets.token_hex(4)}"
            plan["numbers"] = {}
            self._live.save()
        outlet = self._make_outlet(plan["collector"], dict(plan["numbers"]))
        try:
            return self._write(outlet)
        finally:
            outlet.close()

    def _write(self, outlet: Outlet) -> bool:
        live, plan = self._live, self._live.history
        begin = float(plan["begin"])
        windows = 0
        while True:
            end = plan.get("end")
            now = aligned(self._clock.now().timestamp())
            if end is None and now - live.hall.at < WINDOW_S:
                self._keep(outlet)
                plan["end"] = end = max(now, live.hall.at)
                live.save()
            if end is not None and live.hall.at >= end:
                break
            if self._stopped():
                return False
            outlet.send(self._window(min(live.hall.at + WINDOW_S, end or float("inf"))))
            windows += 1
            self.done_share = (live.hall.at - begin) / max(now - begin, 1.0)
            if windows % SAVE_EVERY == 0:
                self._keep(outlet)
        plan["done"] = True
        self._keep(outlet)
        log.info(
            "history written: %s rows of %.1f h", f"{outlet.rows:,}", (live.hall.at - begin) / 3600
        )
        return True

    def _window(self, until: float) -> Iterator[Body]:
        """Let the hall go on until then, and give the rows of that time."""
        hall, observer = self._live.hall, self._live.observer
        since = hall.at
        seen = []
        while hall.at < until:
            hall.advance(STEP_S)
            links = hall.at % LINKS_EVERY_S < STEP_S / 2
            seen.append(observer.observe(links=links))
            if links:
                yield from self._messages.bodies(self._rows.nvlink_parts([seen[-1]]))
        yield from self._messages.bodies(self._rows.parts(seen, links=False))
        events = self._events.between(hall.faults, since, until)
        if events is not None:
            stream = self._contracts["event"]
            for key, batch in split(stream, events):
                yield stream.name, key, batch.num_rows, write_body(batch)

    def _keep(self, outlet: Outlet) -> None:
        outlet.flush()
        self._live.history["numbers"] = dict(outlet.numbers)
        self._live.save()
