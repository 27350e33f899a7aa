"""Findings of one window, put together by topology: one case per cause, not 72.

A hot rack owns its throttling GPUs, a coolant loop its racks, a cable both its ends, a leaf
switch the links that merely wait behind a broken one, a host its GPUs, a job its members.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from pipeline.detection.findings import Finding
from pipeline.detection.spec import DetectorSpec

# From how many entities on one thing it is that thing's incident.
GPUS_PER_HOST = 3
GPUS_PER_RACK = 6
GPUS_PER_JOB = 12
RACKS_PER_LOOP = 3
LINKS_PER_SWITCH = 4
# So many smallest effects above its rack, a GPU's heat is its own; slots behind others in the
# tray get warmer coolant and stand up to one above the rest when flow is low.
OWN_HEAT = 1.5
# A link that only waits, less than this share of the worst on its leaf, is a victim.
VICTIM_SHARE = 0.6


@dataclass
class Case:
    """What may become one incident.

    Attributes:
        lead: the finding that explains it; with the owner's identity where there is one.
        members: all findings in it, the lead included.
    """

    detector: str
    entity_kind: str
    entity_id: str
    entity_name: str
    lead: Finding
    members: list[Finding] = field(default_factory=list)

    @property
    def raises(self) -> bool:
        """Whether any of it is persistent enough to open an incident.

        What another detector found and this case only owns does not open it.
        """
        return any(member.raises for member in self.members if member.detector == self.detector)

    @property
    def ids(self) -> set[str]:
        """All ids that this case is about."""
        ids = {self.entity_id} | {member.entity_id for member in self.members}
        return ids | {str(m.location["peer"]) for m in self.members if m.location.get("peer")}


def make_cases(
    findings: Iterable[Finding], specs: dict[str, DetectorSpec],
    open_owners: Collection[str] = (),
) -> list[Case]:  # fmt: skip
    """Group the findings of one window.

    Args:
        open_owners: entities that have an open incident.
    """
    by_kind: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_kind[finding.entity_kind].append(finding)
    racks = _rack_cases(by_kind.pop("rack", []), specs)
    gpus = _gpu_cases(by_kind.pop("gpu", []), racks, open_owners)
    links = _link_cases(by_kind.pop("ib_port", []))
    others = [single(finding) for kind in by_kind.values() for finding in kind]
    return racks + gpus + links + others


def single(finding: Finding) -> Case:
    """A case of its own."""
    return Case(
        finding.detector, finding.entity_kind, finding.entity_id, finding.entity_name, finding,
        [finding],
    )  # fmt: skip


def strength(finding: Finding) -> tuple[bool, int, float, float, str]:
    """Order of findings, weakest first."""
    return (
        finding.raises, finding.level, finding.effect, finding.score, finding.entity_id,
    )  # fmt: skip


def _owned(
    findings: list[Finding], kind: str, owner: str, text: Callable[[Finding, int], str]
) -> Case:
    """A case that belongs to something above the findings."""
    lead = max(findings, key=strength)
    # What the lead's sentence says of itself is said of the owner.
    lead = replace(lead, summary=text(lead, len(findings)))
    return Case(lead.detector, kind, owner, owner, lead, findings)


# --- racks and loops -----------------------------------------------------------------------
def _rack_cases(findings: list[Finding], specs: dict[str, DetectorSpec]) -> list[Case]:
    loops: dict[str, list[Finding]] = defaultdict(list)
    alone: list[Finding] = []
    for finding in findings:
        owner = _owner(finding, specs)
        if owner is None:
            alone.append(finding)
        else:
            loops[owner].append(finding)
    # Racks of a loop that is at fault have no case of their own.
    rest: dict[str, list[Finding]] = defaultdict(list)
    for finding in alone:
        loop = str(finding.location.get("cdu", ""))
        if loop in loops and any(f.raises for f in loops[loop]):
            loops[loop].append(finding)
        else:
            rest[loop].append(finding)
    cases = [
        _owned(
            found, "cdu", loop,
            lambda lead, n: f"Coolant loop {loop_of(lead)}: {_after_colon(lead.summary)}"
            f" {n} rack{'s' if n > 1 else ''} affected.",
        )
        for loop, found in loops.items()
    ]  # fmt: skip
    for loop, found in rest.items():
        raised = {f.cause for f in found if f.raises}
        if loop and len(raised) == 1 and sum(f.raises for f in found) >= RACKS_PER_LOOP:
            cases.append(
                _owned(
                    found, "cdu", loop,
                    lambda lead, n: f"Coolant loop {loop_of(lead)}: {n} of its racks at once;"
                    f" the worst: {lead.summary}",
                )
            )  # fmt: skip
        else:
            cases += [single(finding) for finding in found]
    return cases


def loop_of(finding: Finding) -> str:
    """The coolant loop of a finding."""
    return str(finding.location.get("cdu", "?"))


def _owner(finding: Finding, specs: dict[str, DetectorSpec]) -> str | None:
    spec = specs.get(finding.detector)
    cause = spec.cause_of(finding.cause) if spec is not None else None
    if cause is None or not cause.owner:
        return None
    owner = finding.location.get(cause.owner)
    return str(owner) if owner else None


def _after_colon(text: str) -> str:
    return text.split(": ", 1)[-1]


# --- GPUs ----------------------------------------------------------------------------------
def _gpu_cases(
    findings: list[Finding], racks: list[Case], open_owners: Collection[str]
) -> list[Case]:
    warm = Counter(str(f.location.get("rack")) for f in findings if held_by_heat(f))
    hot: dict[str, Case] = {}
    for case in racks:
        # Evidence that only holds owns what is open already, or many at once: one hot GPU does
        # not wait for its rack.
        several = max((warm[str(m.location.get("rack"))] for m in case.members), default=0)
        if not (case.raises or case.entity_id in open_owners or several >= GPUS_PER_HOST):
            continue
        for member in case.members:
            hot[str(member.location.get("rack", member.entity_id))] = case
        if case.entity_kind == "cdu":
            hot[f"cdu {case.entity_id}"] = case
    left: list[Finding] = []
    for finding in findings:
        rack, loop = finding.location.get("rack"), finding.location.get("cdu")
        owner = hot.get(str(rack)) or hot.get(f"cdu {loop}")
        # What has an incident of its own keeps it.
        own = finding.entity_id in open_owners
        if owner is not None and not own and held_by_heat(finding):
            owner.members.append(finding)
        else:
            left.append(finding)
    cases: list[Case] = []
    for key, least, kind, word in (
        ("job", GPUS_PER_JOB, "job", "Job"),
        ("rack", GPUS_PER_RACK, "rack", "Rack"),
        ("host", GPUS_PER_HOST, "host", "Host"),
    ):
        left = _gather(left, key, least, kind, word, cases)
    return cases + [single(finding) for finding in left]


def held_by_heat(finding: Finding) -> bool:
    """Whether heat holds a GPU down that is no hotter than the others of its rack.

    One that stands far above them has a fault of its own, also in a hot rack.
    """
    own = finding.features.get("effect:core_over_coolant_k", 0.0)
    names = {item["feature"] for item in finding.evidence}
    hot = finding.features.get("thermal_share", 0.0) > 0.02 or "thermal_share" in names
    return hot and own < OWN_HEAT


def _gather(
    findings: list[Finding], key: str, least: int, kind: str, word: str, cases: list[Case]
) -> list[Finding]:
    """Make one case of many GPUs on one thing with one cause; give back the others."""
    together: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    left = []
    for finding in findings:
        place = finding.location.get(key)
        if place:
            together[str(place), finding.cause].append(finding)
        else:
            left.append(finding)
    for (place, _), found in together.items():
        if sum(finding.raises for finding in found) >= least:
            cases.append(
                _owned(
                    found, kind, place,
                    lambda lead, n, place=place: f"{word} {place}: {n} of its GPUs at once;"  # type: ignore[misc]  # mypy infers no default
                    f" the worst: {lead.summary}",
                )
            )  # fmt: skip
        else:
            left += found
    return left


# --- links ---------------------------------------------------------------------------------
PHYSICAL = {
    "link_up", "symbol_errors_per_min", "rcv_errors_per_min", "recoveries_per_min",
    "fec_uncorrectable_per_min",
}  # fmt: skip


def _link_cases(findings: list[Finding]) -> list[Case]:
    cables: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in findings:
        pair = {finding.entity_id, str(finding.location.get("peer") or finding.entity_id)}
        cables[tuple(sorted(pair))].append(finding)
    leaves: dict[str, list[Case]] = defaultdict(list)
    for ends in cables.values():
        lead = max(ends, key=lambda f: (root_like(f), strength(f)))
        leaves[leaf_of(lead)].append(
            Case(lead.detector, lead.entity_kind, lead.entity_id, lead.entity_name, lead, ends)
        )
    cases: list[Case] = []
    for leaf, found in leaves.items():
        cases += _roots(found) if leaf else found
    return cases


def root_like(finding: Finding) -> bool:
    """Whether the evidence is of the link itself and not only of waiting."""
    return any(item["feature"] in PHYSICAL for item in finding.evidence)


def leaf_of(finding: Finding) -> str:
    """Node id of the leaf switch that a port belongs to or looks at."""
    if str(finding.location.get("tier", "")).startswith("leaf"):
        return str(finding.location.get("node", ""))
    peer = str(finding.location.get("peer", ""))
    return peer.split("/")[0]


def _roots(found: list[Case]) -> list[Case]:
    """On one leaf: links that are broken own those that wait, the worst waits own the rest."""
    broken = [case for case in found if root_like(case.lead)]
    waiting = [case for case in found if not root_like(case.lead)]
    down = [case for case in broken if case.lead.cause == "downed_uplink"]
    if len(down) > 1:
        # Ports of one module die together.
        first = max(down, key=lambda case: strength(case.lead))
        for case in down:
            if case is not first:
                first.members += case.members
        broken = [case for case in broken if case not in down or case is first]
    roots = broken
    if not roots and waiting:
        worst = max(waiting, key=lambda case: strength(case.lead))
        roots = [
            case
            for case in waiting
            if case is worst
            or (case.raises and case.lead.effect >= VICTIM_SHARE * worst.lead.effect)
        ]
        if len(roots) >= LINKS_PER_SWITCH:
            name = str(worst.lead.location.get("switch_name") or leaf_of(worst.lead))
            lead = replace(
                worst.lead,
                summary=f"Switch {name}: {len(roots)} of its links at once; the worst:"
                f" {worst.lead.summary}",
            )
            members = [member for case in waiting for member in case.members]
            return [Case(lead.detector, "ib_switch", leaf_of(worst.lead), name, lead, members)]
    for case in waiting:
        if case not in roots:
            owner = max(roots, key=lambda root: strength(root.lead))
            owner.members += case.members
    return roots
