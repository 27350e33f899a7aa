"""Pages that a method would have sent over a set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from pipeline.detection.conformal import BoolArray
from pipeline.detection.frame import MINUTE
from pipeline.detection.spec import DetectorSpec
from pipeline.incidents.evaluation.events import Page
from pipeline.incidents.evaluation.labelled import Fault
from pipeline.incidents.evaluation.replay import Played
from pipeline.incidents.step import SILENT, advance
from pipeline.incidents.table import Transition

# A simple method's page is over after so many quiet minutes.
QUIET = timedelta(minutes=10)


def pages_of_alarms(alarms: BoolArray, played: Played, faults: Sequence[Fault]) -> list[Page]:
    """Pages of a method without grouping: each entity on its own.

    An entity counts as named rightly when the fault is of the coolant loop that it stands on.
    """
    loops = played.frame.labels.get("cdu")
    owners = {fault.entities[0] for fault in faults if fault.entity_kind == "cdu"}
    pages = []
    for entity in np.flatnonzero(alarms[played.first :].any(axis=0)):
        last = None
        for minute in np.flatnonzero(alarms[:, entity]):
            if minute < played.first:
                continue
            at = played.frame.ends[minute]
            if last is None or at - last > QUIET + MINUTE:
                ids = {played.frame.entities[entity]}
                loop = loops.latest(int(entity)) if loops is not None else None
                if loop in owners and loop is not None:
                    ids.add(loop)
                pages.append(Page(played.spec.id, at, frozenset(ids)))
            last = at
    return pages


def incidents_of(
    played: Sequence[Played], specs: dict[str, DetectorSpec], cluster: str
) -> list[Page]:
    """Incidents that the detectors would have opened together, grouped as when live."""
    if not played:
        return []
    by_id = {item.spec.id: item for item in played}
    open_now: dict[str, Transition] = {}
    opened: dict[str, tuple[Transition, list[str], set[str]]] = {}
    before: dict[tuple[str, str], str] = {}
    longest = max(played, key=lambda item: len(item.frame.ends))
    for end in longest.frame.ends[longest.first :]:
        findings = [f for item in played for f in item.findings(item.index_of(end))]

        def over(incident: Transition, end: datetime = end) -> bool:
            item = by_id[incident.detector]
            index = item.index_of(end)
            if item.has_verdict(index, incident.ids):
                return True
            first = max(0, index - int(SILENT / MINUTE))
            return not any(item.has_verdict(past, incident.ids) for past in range(first, index))

        changes = advance(
            findings, list(open_now.values()), before, specs, cluster, end, set(by_id), [], over
        )
        for change in changes:
            if change.transition == "opened":
                opened[change.incident_id] = (change, [], set())
            _, causes, ids = opened[change.incident_id]
            causes.append(change.cause)
            # What came later does not make an earlier page right: only its own entity, cable
            # and the members that it named when it was sent.
            if change.transition == "opened":
                ids |= change.ids
            if change.transition == "resolved":
                del open_now[change.incident_id]
            else:
                open_now[change.incident_id] = change
        before = {(f.detector, f.entity_id): f.cause for f in findings}
    return [
        Page(first.detector, first.window_end, frozenset(ids), tuple(causes), first.summary)
        for first, causes, ids in opened.values()
    ]
