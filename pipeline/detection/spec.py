"""The specification of a detector: ``models/<id>/detector.toml`` and ``features.sql``.

Adding a detector is adding one such folder; nothing in this package names a detector.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import ConfigError

Bad = Literal["low", "high", "both"]
Severity = Literal["info", "warning", "critical"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PeerGroup(_Model):
    """Which entities are compared with one another.

    Attributes:
        name: for people, such as ``same job and role``.
        by: columns of ``features.sql`` that peers share.
        min_peers: fewer others than this and the next group is tried.
        families: feature families that this group is for; by default all that no other
            group names.
    """

    name: str
    by: tuple[str, ...]
    min_peers: int = Field(default=8, ge=1)
    families: tuple[str, ...] = ()


class Feature(_Model):
    """One number per entity and minute, judged by its residual against peers.

    Attributes:
        name: column of ``features.sql``; its unit stands in ``unit``.
        label: the words for people.
        family: features of one family go into one forest.
        bad: the direction that means trouble; the other one never pages.
        floor: smallest scale of the robust z, in ``unit``: a quiet fleet cannot explode z.
        min_effect: smallest residual that matters, in ``unit``.
        min_effect_ratio: the same as a share of the peer median; the larger one counts.
        given: feature that this one follows; its pooled slope is taken out.
        compare: ``peers`` takes out the peers' median; ``own`` compares with the entity's own
            commissioning value alone.
        offset: whether the entity's own commissioning offset is taken out.
        offset_cap: largest offset that is believed to be birth and not fault, in ``unit``.
        forest: false keeps it out of the forests: it is for effects and causes only.
        page: false for a feature that explains, but alone never pages.
        decimals: digits in text.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    label: str
    unit: str
    family: str
    bad: Bad = "high"
    floor: float = Field(gt=0)
    min_effect: float = Field(gt=0)
    min_effect_ratio: float = Field(default=0.0, ge=0)
    given: str | None = None
    compare: Literal["peers", "own"] = "peers"
    offset: bool = True
    offset_cap: float = Field(default=float("inf"), gt=0)
    forest: bool = True
    page: bool = True
    decimals: int = Field(default=1, ge=0, le=6)


class Forest(_Model):
    """Settings of the isolation forests."""

    trees: int = Field(default=100, ge=10)
    max_samples: int = Field(default=256, ge=64)
    trim: float = Field(default=0.03, ge=0, lt=0.5)
    max_rows: int = Field(default=60_000, ge=1000)


class KofN(_Model):
    """Evidence in at least ``k`` of the last ``n`` windows."""

    k: int = Field(ge=1)
    n: int = Field(ge=1)

    @model_validator(mode="after")
    def _check(self) -> KofN:
        if self.k > self.n:
            raise ValueError("k is larger than n")
        return self


class Decision(_Model):
    """From scores to pages.

    Attributes:
        false_pages_per_week: the operator's knob, for the whole fleet.
        strong: persistence of strong evidence; weak: of weak evidence (long windows).
        strong_effect: effect that counts as strong, in units of the smallest that matters.
        min_z: the feature that carries the effect must stand out this far as well.
        hold_effect, hold_p: the lower bar that keeps an incident open.
        clear_minutes: windows without even that, before it closes.
        long_minutes: length of the long window.
    """

    false_pages_per_week: float = Field(default=1.0, gt=0)
    strong: KofN = KofN(k=2, n=3)
    weak: KofN = KofN(k=3, n=4)
    strong_effect: float = Field(default=2.0, ge=1)
    weak_effect: float = Field(default=1.0, ge=1)
    min_z: float = Field(default=5.0, gt=0)
    hold_effect: float = Field(default=0.5, gt=0)
    hold_p: float = Field(default=0.01, gt=0, lt=1)
    clear_minutes: int = Field(default=10, ge=1)
    long_minutes: int = Field(default=10, ge=2)


class Gate(_Model):
    """The structure gate: what must hold before a window is judged.

    Attributes:
        min_samples: samples in the minute.
        min_share: samples in the minute against the entity's usual number: a minute of which
            only a part has arrived is not judged.
        settle_minutes: minutes after a change of the settle columns without a verdict.
        settle: columns whose change unsettles an entity, such as its job.
        frozen_minutes: minutes in which no noisy field moved: the source repeats itself.
        lost_minutes: minutes without a sample, while its host reports, after which an entity
            counts as lost.
        lost_cause: cause of that finding; empty for entities that come and go.
    """

    min_samples: int = Field(default=1, ge=1)
    min_share: float = Field(default=0.4, ge=0, le=1)
    settle_minutes: int = Field(default=2, ge=0)
    settle: tuple[str, ...] = ()
    frozen_minutes: int = Field(default=4, ge=2)
    lost_minutes: int = Field(default=4, ge=1)
    lost_cause: str = "telemetry_lost"


class Rule(_Model):
    """A hard rule: no model, also used to keep such minutes out of training.

    Attributes:
        when: ``column op number``, over one minute.
        k, n: minutes in which it must hold.
        page: false only keeps such minutes out of training.
        train: true keeps the minutes in training.
    """

    name: str
    when: str
    k: int = Field(default=1, ge=1)
    n: int = Field(default=1, ge=1)
    cause: str = ""
    severity: Severity = "critical"
    page: bool = True
    effect: float = 3.0

    @cached_property
    def parsed(self) -> tuple[str, str, float]:
        """Column, operator and number."""
        found = re.fullmatch(r"\s*(\w+)\s*(>=|<=|==|!=|>|<)\s*(-?[\d.eE+-]+)\s*", self.when)
        if not found:
            raise ConfigError(f'Rule {self.name}: write when as "column > number"')
        return found[1], found[2], float(found[3])


class Cause(_Model):
    """A signature: what the features of a known fault look like.

    Conditions read ``feature low``, ``feature high``, ``feature low 0.5``: the signed
    residual in units of the smallest effect that matters (1 unless a number stands there).

    Attributes:
        owner: location column of what this cause belongs to, such as ``cdu``: the incident
            is that one's, and the entity a member of it.
    """

    id: str
    title: str
    need: tuple[str, ...] = ()
    support: tuple[str, ...] = ()
    refute: tuple[str, ...] = ()
    action: str
    severity: Severity = "warning"
    prior: float = Field(default=1.0, gt=0)
    owner: str = ""


class DetectorSpec(_Model):
    """One detector.

    Attributes:
        entity_kind, noun: what it judges, as a word for tables and one for people.
        streams: tables that ``features.sql`` reads, the main one first.
        location: columns that say where an entity stands.
        given: columns beside the features that features may follow.
        static: fixed thresholds of today's practice: evaluation's baseline, nothing else.
    """

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    description: str
    entity_kind: str
    streams: tuple[str, ...] = Field(min_length=1)
    location: tuple[str, ...] = ()
    noun: str
    peer_group: tuple[PeerGroup, ...] = Field(min_length=1)
    feature: tuple[Feature, ...] = Field(min_length=1)
    given: tuple[str, ...] = ()
    gate: Gate = Gate()
    forest: Forest = Forest()
    decision: Decision = Decision()
    rule: tuple[Rule, ...] = ()
    static: tuple[Rule, ...] = ()
    cause: tuple[Cause, ...] = ()
    sql: str = ""
    digest: str = ""

    @model_validator(mode="after")
    def _check(self) -> DetectorSpec:
        names = [feature.name for feature in self.feature]
        if len(set(names)) != len(names):
            raise ValueError("a feature stands twice")
        for family in self.families:
            count = sum(f.forest for f in self.feature if f.family == family)
            if count > 8:
                raise ValueError(f"family {family} has {count} features; a forest takes 8")
        for feature in self.feature:
            if feature.given and feature.given not in (*names, *self.given):
                raise ValueError(f"{feature.name}: given names no feature: {feature.given}")
        for cause in self.cause:
            for text in (*cause.need, *cause.support, *cause.refute):
                condition = parse_condition(text)
                if condition[0] not in names:
                    raise ValueError(f"cause {cause.id}: no feature {condition[0]}")
        return self

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Families in order of first mention."""
        return tuple(dict.fromkeys(feature.family for feature in self.feature))

    def groups_of(self, family: str) -> tuple[int, ...]:
        """Indices of the peer groups that a family is compared within, in order of choice."""
        own = tuple(i for i, group in enumerate(self.peer_group) if family in group.families)
        return own or tuple(i for i, group in enumerate(self.peer_group) if not group.families)

    @cached_property
    def by_name(self) -> dict[str, Feature]:
        """Features by name."""
        return {feature.name: feature for feature in self.feature}

    def cause_of(self, cause_id: str) -> Cause | None:
        """The signature of that name, or None."""
        return next((cause for cause in self.cause if cause.id == cause_id), None)


def parse_condition(text: str) -> tuple[str, str, float]:
    """Feature, side and size of a cause's condition.

    Raises:
        ValueError: it is not of that form.
    """
    parts = text.split()
    if len(parts) not in (2, 3) or parts[1] not in ("low", "high"):
        raise ValueError(f'condition "{text}": write "feature low" or "feature high 0.5"')
    return parts[0], parts[1], float(parts[2]) if len(parts) == 3 else 1.0


def models_folder() -> Path:
    """The folder of detectors: beside the checkout's package, else inside the wheel."""
    checkout = Path(__file__).resolve().parents[2] / "models"
    if checkout.is_dir():
        return checkout
    return Path(str(resources.files("pipeline") / "_data" / "models"))


def load_spec(folder: Path) -> DetectorSpec:
    """Read one detector's folder.

    Raises:
        ConfigError: a file is missing or wrong; the text names it and says what is wrong.
    """
    path = folder / "detector.toml"
    try:
        text = path.read_text(encoding="utf-8")
        sql = (folder / "features.sql").read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except FileNotFoundError as exc:
        raise ConfigError(f"Detector {folder.name}: {exc.filename} is missing") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path} is not TOML: {exc}") from exc
    digest = hashlib.sha256((text + "\0" + sql).encode()).hexdigest()
    try:
        spec = DetectorSpec.model_validate({**raw, "sql": sql, "digest": digest})
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from exc
    if spec.id != folder.name:
        raise ConfigError(f"{path}: id {spec.id} must be the folder's name, {folder.name}")
    for rule in (*spec.rule, *spec.static):
        _ = rule.parsed
    return spec


def load_specs(folder: Path | None = None) -> dict[str, DetectorSpec]:
    """All detectors, by id, in alphabetical order."""
    folder = folder or models_folder()
    found = sorted(path.parent for path in folder.glob("*/detector.toml"))
    return {path.name: load_spec(path) for path in found}


def get_spec(detector: str, folder: Path | None = None) -> DetectorSpec:
    """One detector by id.

    Raises:
        ConfigError: there is none of that name; the text lists those that there are.
    """
    specs = load_specs(folder)
    if detector not in specs:
        raise ConfigError(f"No detector {detector}: there are {', '.join(specs)}")
    return specs[detector]
