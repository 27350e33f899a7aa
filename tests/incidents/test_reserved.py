"""Halls that are kept for judging are never trained on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.errors import RackpulseError
from pipeline.hall.record import record
from pipeline.hall.scenario import Scenario, load_scenario
from pipeline.incidents.evaluation.labelled import purpose_of
from pipeline.incidents.evaluation.report import evaluate_sets
from pipeline.settings import Settings
from pipeline.streams import Contracts
from tests.conftest import ROOT


def _set(folder: Path, purpose: str, contracts: Contracts) -> Path:
    scenario = Scenario.model_validate(
        {
            "purpose": purpose,
            "hall": {"racks": 1, "seed": 5},
            "time": {"start": datetime(2026, 3, 2, 8, tzinfo=UTC), "hours": 0.1, "nvlink_s": 0},
        }
    )
    record(scenario, folder, contracts)
    return folder


def test_a_reserved_set_is_not_trained_on(tmp_path: Path, contracts: Contracts) -> None:
    reserved = _set(tmp_path / "reserved", "reserve", contracts)
    other = _set(tmp_path / "other", "test", contracts)
    assert (purpose_of(reserved), purpose_of(other)) == ("reserve", "test")
    with pytest.raises(RackpulseError, match="reserved for judging"):
        evaluate_sets(Settings(), [other], train_on=[other, reserved])


def test_a_set_of_another_maker_has_no_purpose(tmp_path: Path) -> None:
    assert purpose_of(tmp_path) is None
    (tmp_path / "scenario.json").write_text("[1]", encoding="utf-8")
    assert purpose_of(tmp_path) is None


def test_two_halls_of_the_repository_are_reserved_with_seeds_of_their_own() -> None:
    scenarios = [load_scenario(path) for path in (ROOT / "tests" / "scenarios").glob("*.toml")]
    kept = {s.hall.seed for s in scenarios if s.purpose == "reserve"}
    assert len(kept) == 2
    assert not kept & {s.hall.seed for s in scenarios if s.purpose != "reserve"}
