from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pipeline.hall.faults import CAUSES
from pipeline.hall.plots import SHOWN, signature
from pipeline.hall.scenario import faults_of, fleet_of, load_scenario
from tests.conftest import ROOT


def test_every_cause_has_its_panels() -> None:
    assert set(SHOWN) == set(CAUSES)


@pytest.mark.parametrize("cause", ["capped_clocks", "tired_pump", "downed_uplink", "small_leak"])
def test_a_signature_is_drawn(cause: str) -> None:
    root = ET.fromstring(signature(cause))  # noqa: S314  # our own text
    paths = [node for node in root.iter() if node.tag.endswith("path")]
    assert len(paths) >= 2 * len(SHOWN[cause]) - 1
    text = "".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
    assert cause in text
    assert "nan" not in "".join(path.attrib["d"] for path in paths)


def test_scenarios_of_the_repository_can_be_drawn() -> None:
    for path in sorted((ROOT / "tests" / "scenarios").glob("*.toml")):
        scenario = load_scenario(path)
        faults = faults_of(scenario, fleet_of(scenario))
        assert all(scenario.start_s <= fault.start < scenario.end_s for fault in faults), path.name
