"""Scenarios: a hall, a time, faults and harmless events, in TOML.

::

    [hall]
    racks = 8
    seed = 101

    [time]
    start = 2026-03-02T08:00:00Z
    hours = 6
    sample_s = 60

    [[fault]]                       # one fault, named
    cause = "capped_clocks"
    entity = "rack-02/tray-05/slot-1"
    at_minute = 60
    minutes = 30

    [[draw]]                        # faults drawn from a seed
    seed = 7
    causes = ["bad_cable", "slow_receiver"]
    count = 4
    minutes = [20, 40]

    [[benign]]
    kind = "driver_upgrade"
    entity = "rack-03-tray-02"
    at_minute = 90
    minutes = 10
"""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import ConfigError
from pipeline.hall.births import draw_births
from pipeline.hall.draw import Drawer
from pipeline.hall.faults import CAUSES, Fault, make_benign, make_fault
from pipeline.hall.fleet import MAX_RACKS, Fleet, build_fleet


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HallPart(_Model):
    """Size and identity of the hall, and who reads its fabric."""

    racks: int = Field(default=8, ge=1, le=MAX_RACKS)
    seed: int = Field(ge=0)
    cluster: str = "main"
    racks_per_cdu: int | None = Field(default=None, ge=1)
    fabric: Literal["ib_exporter", "ufm"] = "ib_exporter"


class TimePart(_Model):
    """When, for how long, how fine.

    Attributes:
        sample_s: time between samples.
        step_s: time between the steps of the simulation; sample_s is a multiple.
        nvlink_s: time between samples of the NVLinks, healthy or not; 0 leaves them out.
    """

    start: datetime
    hours: float = Field(gt=0)
    sample_s: float = Field(default=60.0, gt=0)
    step_s: float = Field(default=10.0, gt=0)
    nvlink_s: float = Field(default=600.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> TimePart:
        for name in ("sample_s", "nvlink_s"):
            if getattr(self, name) % self.step_s:
                raise ValueError(f"{name} is not a multiple of step_s")
        if self.nvlink_s % self.sample_s:
            raise ValueError("nvlink_s is not a multiple of sample_s")
        if self.start.tzinfo is None:
            raise ValueError("start needs a time zone: write 2026-03-02T08:00:00Z")
        return self


class FaultPart(_Model):
    """A fault that is named."""

    cause: str
    entity: str
    at_minute: float = Field(ge=0)
    minutes: float = Field(gt=0)
    severity: float | None = None
    ramp_s: float | None = Field(default=None, ge=0)


class DrawPart(_Model):
    """Faults that are drawn; no ``causes`` means all of them.

    Attributes:
        count: how many, wherever.
        per_tray_day: how many more on average per compute tray and day, a Poisson draw; the
            field's is ``constants.FIELD_FAULTS_PER_TRAY_DAY``.
    """

    seed: int
    count: int = Field(default=0, ge=0)
    per_tray_day: float = Field(default=0.0, ge=0)
    causes: tuple[str, ...] = ()
    from_minute: float = Field(default=30.0, ge=0)
    minutes: tuple[float, float] = (20.0, 40.0)
    benign: int = Field(default=0, ge=0)


class BenignPart(_Model):
    """A harmless event."""

    kind: str
    entity: str = ""
    at_minute: float = Field(ge=0)
    minutes: float = Field(gt=0)
    level: float = 1.0
    ramp_s: float = Field(default=0.0, ge=0)


class Scenario(_Model):
    """A whole scenario. ``purpose`` keeps training, validation and test seeds apart."""

    purpose: str = Field(default="train", pattern="^(train|validation|test|reserve)$")
    hall: HallPart
    time: TimePart
    fault: tuple[FaultPart, ...] = ()
    draw: tuple[DrawPart, ...] = ()
    benign: tuple[BenignPart, ...] = ()

    @property
    def start_s(self) -> float:
        return self.time.start.astimezone(UTC).timestamp()

    @property
    def end_s(self) -> float:
        return self.start_s + self.time.hours * 3600.0


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ConfigError: the file is missing or wrong; the text names the line's key.
    """
    try:
        return Scenario.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as exc:
        raise ConfigError(f"Scenario {path} is missing; examples lie in tests/scenarios/") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"Scenario {path} is not TOML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"Scenario {path}: {where}: {first['msg']}") from exc


def fleet_of(scenario: Scenario) -> Fleet:
    """The scenario's hall."""
    part = scenario.hall
    return build_fleet(
        part.racks, part.seed, cluster=part.cluster, racks_per_cdu=part.racks_per_cdu
    )


def faults_of(scenario: Scenario, fleet: Fleet) -> list[Fault]:
    """Named and drawn faults and harmless events of a scenario."""
    start = scenario.start_s
    found = [
        make_fault(
            fleet, part.cause, part.entity, start + 60.0 * part.at_minute,
            severity=part.severity, ramp_s=part.ramp_s,
            end=start + 60.0 * (part.at_minute + part.minutes),
        )
        for part in scenario.fault
    ]  # fmt: skip
    births = draw_births(fleet)
    for draw in scenario.draw:
        drawer = Drawer(fleet, births, start, draw.seed)
        unknown = set(draw.causes) - set(CAUSES)
        if unknown:
            raise ConfigError(f"No cause {sorted(unknown)}: there are {', '.join(CAUSES)}")
        first = start + 60.0 * draw.from_minute
        count = draw.count
        if draw.per_tray_day:
            days = max(scenario.end_s - first, 0.0) / 86_400.0
            count += int(drawer.rng.poisson(draw.per_tray_day * fleet.trays * days))
        found += drawer.many(
            draw.causes or tuple(CAUSES), count, first, scenario.end_s, draw.minutes
        )
        found += drawer.benign(draw.benign, first, scenario.end_s)
    found += [
        make_benign(
            fleet, part.kind, part.entity, start + 60.0 * part.at_minute,
            start + 60.0 * (part.at_minute + part.minutes), level=part.level, ramp_s=part.ramp_s,
        )
        for part in scenario.benign
    ]  # fmt: skip
    return found
