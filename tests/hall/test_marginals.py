"""The hall's distributions beside real ones, where those are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench import marginals
from pipeline.hall.constants import FIELD_FAULTS_PER_TRAY_DAY
from pipeline.hall.scenario import faults_of, fleet_of, load_scenario
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def hall() -> dict[str, np.ndarray]:
    found = marginals.simulated(racks=2, hours=3.0)
    return dict(zip((title for title, *_ in marginals.SOURCES), found, strict=True))


def test_gpus_at_work_are_as_warm_as_real_ones(hall: dict[str, np.ndarray]) -> None:
    folder = marginals.data_folder()
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}: set RACKPULSE_DATA")
    at_p98 = list(marginals.PERCENTILES).index(98)
    for title, _, real, factor in marginals.SOURCES:
        if "temperature" in title:
            for file, place in real.values():
                theirs = marginals.reference(folder, file, place, factor)
                assert abs(hall[title][at_p98] - theirs[at_p98]) < 10, (title, file)


def test_utilisation_says_all_or_nothing(hall: dict[str, np.ndarray]) -> None:
    assert np.interp(50, marginals.PERCENTILES, hall["GPU_UTIL, %"]) > 97


def test_without_the_data_nothing_is_drawn_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKPULSE_DATA", str(tmp_path / "none"))
    result = CliRunner().invoke(marginals.main, ["--out", str(tmp_path / "plot.svg")])
    assert result.exit_code == 0
    assert "skipped: no reference data" in result.output
    assert not (tmp_path / "plot.svg").exists()


def test_a_day_at_the_fields_rate_has_some_five_faults() -> None:
    # 584 faults of 400 servers in 348.98 days.
    assert abs(584 / 400 / 348.98 - FIELD_FAULTS_PER_TRAY_DAY) < 2e-5
    scenario = load_scenario(ROOT / "tests" / "scenarios" / "field-rate-day.toml")
    fleet = fleet_of(scenario)
    counts = []
    for seed in range(40):
        draw = scenario.draw[0].model_copy(update={"seed": seed, "benign": 0})
        drawn = faults_of(scenario.model_copy(update={"draw": (draw,)}), fleet)
        counts.append(sum(not fault.benign for fault in drawn))
    # 22 of 24 hours, 1,152 trays: a mean of 4.4 within three standard errors of 40 draws.
    assert abs(np.mean(counts) - 584 / 400 / 348.98 * 1152 * 22 / 24) < 3 * np.sqrt(4.4 / 40)
    assert len(set(counts)) > 3
