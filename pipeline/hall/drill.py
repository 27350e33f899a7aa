"""Fire drills: a labelled fault in a shadow hall, followed through to the webhook.

The shadow hall is a cluster of its own, so it is nobody's peer and no real entity is touched.
Its rows have times of the last hour: the fault began and ended before now, so a drill takes as
long as the pipeline needs for it, and not as long as the fault lasted. Everything else is
real: Kafka, the writers, the store, the live models, incidents, delivery.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.hall.births import draw_births
from pipeline.hall.draw import Drawer
from pipeline.hall.engine import Hall
from pipeline.hall.faults import CAUSES, Fault, make_fault
from pipeline.hall.fleet import Fleet, build_fleet
from pipeline.hall.history import OutletMaker
from pipeline.hall.messages import MessageMaker
from pipeline.hall.observe import Observer
from pipeline.hall.rows import RowMaker, at_time
from pipeline.hall.truth import iso
from pipeline.streams import Contracts

RACKS = 4
# Of the shadow hall: the same racks every time. With this seed no GPU is born slow, and a page
# is about the fault.
SEED = 4254
SAMPLE_S = 30.0
STEP_S = 10.0
HEALTHY_S = 26 * 60.0  # before the fault: what the verdict on one minute looks back on
WARM_S = 8 * 60.0  # of it, until the hall runs as it will
FAULT_S = 10 * 60.0
AFTER_S = 14 * 60.0  # after it, so that the incident resolves
CLUSTER_PREFIX = "drill"


class Pipeline(Protocol):
    """The parts of the real pipeline that a drill watches."""

    def stored(self, cluster: str) -> dict[str, int]:
        """Rows of a cluster in the store, by stream."""
        ...

    def commission(self, cluster: str, start: datetime, end: datetime) -> None:
        """Make the live models know the shadow racks, from this healthy time of theirs."""
        ...

    def judge(self, cluster: str, window_end: datetime) -> list[Mapping[str, Any]]:
        """Score a minute and step the incidents; the transitions of that minute."""
        ...

    def delivered(self, transition_ids: Iterable[str]) -> bool:
        """Whether one of these transitions reached a destination."""
        ...

    def tidy(self, cluster: str, at: datetime) -> None:
        """Close what is still open in this cluster, and in those of drills that were killed."""
        ...


@dataclass
class Stage:
    """One stage of a drill: what was reached, and after how many seconds of work."""

    name: str
    seconds: float
    detail: str = ""


@dataclass
class DrillReport:
    """What a drill found.

    Attributes:
        found: an incident was opened at the right entity.
        cause_right: and its probable cause was the true one.
        delivered: and its alert reached a destination.
        resolved: and it closed when the fault was over.
        minutes_to_detect: of the shadow hall's time, from when the fault could be seen.
        false_pages: incidents of the shadow hall that no fault explains.
    """

    cluster: str
    cause: str
    entity: str
    severity: float
    fault_start: str
    stages: list[Stage] = field(default_factory=list)
    found: bool = False
    cause_right: bool = False
    delivered: bool = False
    resolved: bool = False
    minutes_to_detect: float | None = None
    incident_id: str | None = None
    false_pages: list[str] = field(default_factory=list)
    failure: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the pipeline saw the fault and said so, and nothing else."""
        return self.found and self.cause_right and self.delivered and not self.false_pages

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {**asdict(self), "passed": self.passed}


class Drill:
    """One fire drill.

    Args:
        timeout_s: how long each stage may take.
        say: told of each stage as it is reached.
    """

    def __init__(
        self,
        contracts: Contracts,
        clock: Clock,
        make_outlet: OutletMaker,
        pipeline: Pipeline,
        *,
        timeout_s: float = 300.0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._contracts = contracts
        self._clock = clock
        self._make_outlet = make_outlet
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._say = say

    def run(
        self, cause: str, entity: str | None = None, *, severity: float | None = None
    ) -> DrillReport:
        """Inject, follow, report.

        Args:
            entity: in the shadow hall, such as ``rack-02/tray-05/slot-1``; drawn if None.

        Raises:
            RackpulseError: unknown cause or entity, or Kafka does not take the rows.
        """
        now = self._clock.now()
        end = now.replace(second=0, microsecond=0)
        stamp = end.strftime("%Y%m%dT%H%M")
        cluster = f"{CLUSTER_PREFIX}-{stamp}-{secrets.token_hex(3)}"
        fleet = build_fleet(RACKS, SEED, cluster=cluster)
        begin = end.timestamp() - AFTER_S - FAULT_S - HEALTHY_S
        fault = self._fault(fleet, begin, cause, entity, severity)
        report = DrillReport(cluster, cause, fault.entity, fault.severity, iso(fault.start))
        started = self._clock.monotonic()
        rows = self._send(fleet, begin, end.timestamp(), fault)
        self._reach(report, "sent to Kafka", started, f"{sum(rows.values()):,} rows")
        if not self._await(lambda: self._all_stored(cluster, rows)):
            report.failure = "the rows are not in the store: is  rackpulse write  running?"
            return report
        self._reach(report, "stored in ClickHouse", started)
        try:
            self._judge(report, fault, end, started)
        finally:
            # Nobody scores the shadow hall any more: nothing would ever resolve there.
            self._pipeline.tidy(cluster, end)
        return report

    def _fault(
        self, fleet: Fleet, begin: float, cause: str, entity: str | None, severity: float | None
    ) -> Fault:
        start, end = begin + HEALTHY_S, begin + HEALTHY_S + FAULT_S
        if cause not in CAUSES:
            raise RackpulseError(f"No cause {cause!r}: there are {', '.join(CAUSES)}")
        if entity is None:
            seed = int(start) // 60
            return Drawer(fleet, draw_births(fleet), begin, seed).one([cause], start, end)
        return make_fault(fleet, cause, entity, start, severity=severity, end=end)

    def _send(self, fleet: Fleet, begin: float, end: float, fault: Fault) -> dict[str, int]:
        """Send the shadow hall's hour; rows by stream."""
        hall = Hall(fleet, begin, [fault])
        observer, rows = Observer(hall), RowMaker(fleet, self._contracts)
        seen = []
        while hall.at < end:
            hall.advance(STEP_S)
            if hall.at % SAMPLE_S < STEP_S / 2:
                seen.append(observer.observe(links=False))
        outlet = self._make_outlet(f"drill.{secrets.token_hex(4)}", {})
        sent: dict[str, int] = {}

        def counted() -> Iterable[tuple[str, str, int, bytes]]:
            for body in MessageMaker(rows).bodies(rows.parts(seen, links=False)):
                sent[body[0]] = sent.get(body[0], 0) + body[2]
                yield body

        try:
            outlet.send(counted())
            outlet.flush()
        finally:
            outlet.close()
        return sent

    def _all_stored(self, cluster: str, rows: Mapping[str, int]) -> bool:
        stored = self._pipeline.stored(cluster)
        return all(stored.get(stream, 0) >= count for stream, count in rows.items())

    def _judge(self, report: DrillReport, fault: Fault, end: datetime, started: float) -> None:
        """Score minute by minute until the incident opened, was told, and closed."""
        right = {fault.entity, *fault.also}
        opened: list[str] = []
        start = at_time(fault.start).replace(second=0, microsecond=0)
        warm = start - timedelta(seconds=HEALTHY_S - WARM_S)
        self._pipeline.commission(report.cluster, warm, start)
        at = start + timedelta(minutes=1)
        while at <= end:
            for step in self._pipeline.judge(report.cluster, at):
                ids = {str(step["entity_id"]), *map(str, step["members"])}
                mine = bool(ids & right) and step["detector"] == fault.detector
                if step["transition"] == "opened" and not mine:
                    report.false_pages.append(f"{step['detector']}: {step['summary']}")
                elif mine:
                    self._transition(report, fault, step, at, opened, started)
            at += timedelta(minutes=1)
        if not report.found:
            report.failure = "no incident was opened at the faulty entity"

    def _transition(
        self, report: DrillReport, fault: Fault, step: Mapping[str, Any], at: datetime,
        opened: list[str], started: float,
    ) -> None:  # fmt: skip
        if step["cause"] == fault.cause:
            report.cause_right = True
        if step["transition"] == "resolved":
            report.resolved = True
            self._reach(report, "incident resolved", started)
            return
        opened.append(str(step["transition_id"]))
        if report.found:
            return
        report.found = True
        report.incident_id = str(step["incident_id"])
        report.minutes_to_detect = round((at.timestamp() - fault.visible_from) / 60.0, 1)
        self._reach(report, "incident opened", started, str(step["summary"]))
        if self._await(lambda: self._pipeline.delivered(opened)):
            report.delivered = True
            self._reach(report, "alert delivered", started)
        else:
            report.failure = (
                "no alert was delivered: is  rackpulse alerts deliver  running, and does a"
                " destination take drills?"
            )

    def _reach(self, report: DrillReport, name: str, started: float, detail: str = "") -> None:
        took = round(self._clock.monotonic() - started, 1)
        report.stages.append(Stage(name, took, detail))
        self._say(f"{took:7.1f} s  {name}" + (f": {detail}" if detail else ""))

    def _await(self, check: Callable[[], bool]) -> bool:
        deadline = self._clock.monotonic() + self._timeout_s
        while not check():
            if self._clock.monotonic() > deadline:
                return False
            self._clock.wait(0.5)
        return True
