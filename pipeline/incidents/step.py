"""One step of the incidents: findings of a window become opened, updated and resolved."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.detection.findings import COLUMNS as FINDING_COLUMNS
from pipeline.detection.findings import Finding, from_row
from pipeline.detection.frame import MINUTE, whole_minute
from pipeline.detection.spec import DetectorSpec, load_specs
from pipeline.incidents import table
from pipeline.incidents.cases import VICTIM_SHARE, Case, make_cases
from pipeline.incidents.silences import Silence, silences, unsilenced
from pipeline.incidents.table import Transition

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from pipeline.settings import Settings

# An entity that gives no verdict any more (drained, replaced) closes its incident after this.
SILENT = timedelta(minutes=45)
# New members are told at most so often; a new cause or severity at once.
MEMBERS_EVERY = timedelta(minutes=5)
MEMBERS_SHOWN = 200
_RANK = {"info": 0, "warning": 1, "critical": 2}


def step(
    client: Client, settings: Settings, window_end: datetime,
    *, specs: dict[str, DetectorSpec] | None = None,
) -> list[Transition]:  # fmt: skip
    """Open, update and resolve incidents from the findings of one window.

    Detectors that were not scored for this window leave their incidents as they are. A repeat
    for the same window, or for one before the newest transition, changes nothing.

    Args:
        window_end: a whole minute, UTC, for which ``score`` ran.

    Returns:
        The transitions of this window, written now or before.

    Raises:
        RackpulseError: ``window_end`` is no whole minute.
    """
    whole_minute(window_end)
    cluster = settings.cluster
    last = table.last_window(client, cluster)
    if last is not None and last >= window_end:
        return table.stored(client, cluster, window_end)
    specs = specs or load_specs()
    scored = scored_detectors(client, cluster, window_end)
    earlier = read_findings(client, cluster, window_end - MINUTE)
    made = advance(
        [f for f in read_findings(client, cluster, window_end) if f.detector in scored],
        table.newest(client, cluster, window_end),
        {(f.detector, f.entity_id): f.cause for f in earlier},
        specs, cluster, window_end, scored, silences(client, since=window_end),
        lambda incident: is_over(client, incident, window_end),
    )  # fmt: skip
    table.insert(client, made)
    return made


def advance(
    findings: list[Finding], open_now: list[Transition], before: dict[tuple[str, str], str],
    specs: dict[str, DetectorSpec], cluster: str, window_end: datetime, scored: set[str],
    quiet: list[Silence], over: Callable[[Transition], bool],
) -> list[Transition]:  # fmt: skip
    """What the findings of one window do to the open incidents: no table is touched.

    Args:
        before: cause that each entity's finding had one window earlier.
        scored: detectors that were scored; incidents of others stay as they are.
        over: whether an incident without findings has ended, rather than gone unseen.
    """
    owners = {incident.entity_id for incident in open_now}
    cases = make_cases(unsilenced(findings, quiet, window_end), specs, owners)
    pairs = match(cases, open_now)
    made = decide(pairs, cluster, window_end, before)
    held = {incident.incident_id for incident, _ in pairs if incident is not None}
    heard = {member.entity_id for case in cases for member in case.members}
    silenced = {finding.entity_id for finding in findings} - heard
    for incident in open_now:
        if incident.detector not in scored or incident.incident_id in held:
            continue
        # Under a silence it neither goes on nor ends.
        if not incident.ids & silenced and over(incident):
            made.append(resolved(incident, window_end))
    return made


def scored_detectors(client: Client, cluster: str, window_end: datetime) -> set[str]:
    """Detectors whose scoring of this window is complete."""
    rows = client.query(
        "SELECT DISTINCT detector FROM telemetry.score_run"
        " WHERE cluster = {c:String} AND window_end = {w:DateTime('UTC')}",
        parameters={"c": cluster, "w": window_end},
    ).result_rows
    return {str(row[0]) for row in rows}


def read_findings(client: Client, cluster: str, window_end: datetime) -> list[Finding]:
    """Findings of one window."""
    rows = client.query(
        f"SELECT {', '.join(FINDING_COLUMNS)} FROM telemetry.finding FINAL"
        " WHERE cluster = {c:String} AND window_end = {w:DateTime('UTC')}"
        " ORDER BY detector, entity_id",
        parameters={"c": cluster, "w": window_end},
    ).result_rows
    found = [from_row(row) for row in rows]
    for finding in found:
        finding.window_end = _aware(finding.window_end)
        finding.first_window = _aware(finding.first_window)
    return found


def match(cases: list[Case], open_now: list[Transition]) -> list[tuple[Transition | None, Case]]:
    """Each case with the open incident that it belongs to, if any."""
    pairs: list[tuple[Transition | None, Case]] = []
    for case in cases:
        mine = [i for i in open_now if i.detector == case.detector]
        same = [i for i in mine if i.entity_id == case.entity_id]
        # An incident may go on about a part of what it owns; it never becomes its owner's.
        overlap = [
            i for i in mine if i.ids & case.ids and not _above(case, i) and not _another(case, i)
        ]
        found = same or overlap
        pairs.append((found[0] if found else None, case))
    return pairs


_LEVEL = {"gpu": 0, "ib_port": 0, "host": 1, "rack": 2, "ib_switch": 2, "job": 3, "cdu": 3}


def _above(case: Case, incident: Transition) -> bool:
    return _LEVEL.get(case.entity_kind, 0) > _LEVEL.get(incident.entity_kind, 0)


def _another(case: Case, incident: Transition) -> bool:
    """Whether a link is a second fault that shares no more than victims with an incident.

    It is when it raises by itself, is new to the incident and, like any root beside another,
    stands far above the incident's own link, if that is still found at all.
    """
    lead = case.lead
    cable = {case.entity_id, str(lead.location.get("peer") or case.entity_id)}
    if case.entity_kind != "ib_port" or not lead.raises or cable & incident.ids:
        return False
    own = max((m.effect for m in case.members if m.entity_id == incident.entity_id), default=0.0)
    return own < VICTIM_SHARE * lead.effect


def decide(
    pairs: list[tuple[Transition | None, Case]], cluster: str, window_end: datetime,
    before: dict[tuple[str, str], str],
) -> list[Transition]:  # fmt: skip
    """What opens and what changes."""
    made: list[Transition] = []
    changed: set[str] = set()
    for incident, case in pairs:
        if incident is None:
            if case.raises:
                made.append(opened(case, cluster, window_end))
        elif incident.incident_id not in changed:
            change = updated(incident, case, window_end, before)
            if change is not None:
                changed.add(incident.incident_id)
                made.append(change)
    return made


def opened(case: Case, cluster: str, window_end: datetime) -> Transition:
    """The first transition of a case."""
    incident = table.incident_id(cluster, case.detector, case.entity_id, window_end)
    lead = case.lead
    return Transition(
        table.transition_id(incident, "opened", window_end), incident, "opened",
        datetime.now(UTC), window_end, cluster, case.detector, case.entity_kind, case.entity_id,
        case.entity_name, lead.location, severity_of(case), lead.cause, lead.cause_confidence,
        lead.summary, lead.evidence, lead.peers, lead.suggested_action, members_of(case),
        lead.model_version, lead.score, window_end, None, cluster.startswith("drill"),
    )  # fmt: skip


def updated(
    incident: Transition, case: Case, window_end: datetime, before: dict[tuple[str, str], str]
) -> Transition | None:
    """A transition when cause, severity or members changed; None when there is no news."""
    lead = case.lead
    steady = before.get((lead.detector, lead.entity_id)) == lead.cause
    # A cause that shows while the evidence fades is no better than the one that opened it.
    firm = case.raises and steady and lead.cause != "unknown" and lead.detector == incident.detector
    new_cause = (
        firm
        and lead.cause != incident.cause
        and (incident.cause == "unknown" or lead.cause_confidence >= incident.cause_confidence)
    )
    worse = case.raises and _RANK[severity_of(case)] > _RANK[incident.severity]
    members = list(dict.fromkeys([*incident.members, *members_of(case)]))[:MEMBERS_SHOWN]
    more = len(members) > len(incident.members) and case.raises
    due = window_end - incident.window_end >= MEMBERS_EVERY
    if not (new_cause or worse or (more and due)):
        return None
    out = _copy(incident, "updated", window_end)
    out.members = members
    if new_cause or worse:
        out.cause = lead.cause if new_cause else incident.cause
        out.cause_confidence = lead.cause_confidence if new_cause else incident.cause_confidence
        out.severity = max(severity_of(case), incident.severity, key=lambda s: _RANK[s])
        out.summary, out.evidence, out.peers = lead.summary, lead.evidence, lead.peers
        out.suggested_action = lead.suggested_action
        out.score, out.model_version = lead.score, lead.model_version
    return out


def resolved(incident: Transition, window_end: datetime) -> Transition:
    """The last transition of an incident."""
    out = _copy(incident, "resolved", window_end)
    out.resolved_at = window_end
    return out


def is_over(client: Client, incident: Transition, window_end: datetime) -> bool:
    """Whether an incident without findings is really over.

    Its entities must have been judged in this window; what gives no verdict is not well. After
    :data:`SILENT` without one it is closed all the same: it was drained or replaced.
    """
    rows = client.query(
        "SELECT maxIf(window_end, verdict) FROM telemetry.detector_score"
        " WHERE cluster = {c:String} AND detector = {d:String} AND entity_id IN {ids:Array(String)}"
        " AND window_end > {from:DateTime('UTC')} AND window_end <= {w:DateTime('UTC')}",
        parameters={
            "c": incident.cluster, "d": incident.detector, "ids": sorted(incident.ids),
            "from": window_end - SILENT, "w": window_end,
        },
    ).result_rows  # fmt: skip
    judged = _aware(rows[0][0])
    if judged == window_end:
        return True
    return judged <= window_end - SILENT and incident.window_end <= window_end - SILENT


def severity_of(case: Case) -> str:
    """The worst severity in a case."""
    own = [m.severity for m in case.members if m.detector == case.detector]
    return max(own or [case.lead.severity], key=lambda s: _RANK[s])


def members_of(case: Case) -> list[str]:
    """Ids of what a case owns beside its own entity."""
    ids = [m.entity_id for m in case.members if m.entity_id != case.entity_id]
    return list(dict.fromkeys(ids))[:MEMBERS_SHOWN]


def _copy(incident: Transition, transition: str, window_end: datetime) -> Transition:
    fields = {**vars(incident)}
    fields.update(
        transition=transition, window_end=window_end, at=datetime.now(UTC),
        transition_id=table.transition_id(incident.incident_id, transition, window_end),
        members=list(incident.members),
    )  # fmt: skip
    return Transition(**fields)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
