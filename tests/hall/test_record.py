from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError
from pipeline.hall.record import read_truth, record
from pipeline.hall.scenario import Scenario, load_scenario
from pipeline.streams import Contracts
from pipeline.streams.arrow import wire_schema
from pipeline.topology import load_topology

_SCENARIO = """
[hall]
racks = 2
seed = 21
[time]
start = 2026-03-02T08:00:00Z
hours = 1.5
sample_s = 60
nvlink_s = 300
[[fault]]
cause = "capped_clocks"
entity = "rack-01/tray-02/slot-1"
at_minute = 40
minutes = 20
severity = 0.2
[[fault]]
cause = "gpu_lost"
entity = "rack-02/tray-02/slot-1"
at_minute = 70
minutes = 20
[[benign]]
kind = "driver_upgrade"
entity = "rack-01-tray-05"
at_minute = 30
minutes = 10
"""


def _load(tmp_path: Path, text: str = _SCENARIO) -> Scenario:
    path = tmp_path / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, contracts: Contracts) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    record(_load(folder), folder / "set", contracts)
    return folder / "set"


def test_a_labelled_set_holds_what_the_design_says(recorded: Path, contracts: Contracts) -> None:
    rows = json.loads((recorded / "rows.json").read_text())
    topology = load_topology(recorded / "topology.json")
    assert len(topology.racks) == 2
    for name, stream in contracts.items():
        table = pq.read_table(recorded / f"{name}.parquet")
        assert table.num_rows == rows[name]
        assert table.schema.equals(wire_schema(stream))
    gpu = pq.read_table(recorded / "gpu.parquet")
    # 90 samples of 144 GPUs, less the lost GPU's last 20 and the four upgraded ones' ten.
    assert gpu.num_rows == 90 * 144 - 20 - 40
    assert pc.count_distinct(gpu["sampled_at"]).as_py() == 90
    nvlink = pq.read_table(recorded / "nvlink.parquet")
    assert pc.count_distinct(nvlink["sampled_at"]).as_py() == 18
    events = pq.read_table(recorded / "event.parquet")
    assert "79" in events["code"].to_pylist()
    identity = [*contracts["gpu"].row_identity]
    distinct = gpu.select(identity).group_by(identity).aggregate([])
    assert distinct.num_rows == gpu.num_rows


def test_truth_names_entity_cause_and_times(recorded: Path) -> None:
    truth = read_truth(recorded)
    capped = next(line for line in truth if line.get("cause") == "capped_clocks")
    assert capped["detector"] == "straggler_gpu"
    assert str(capped["entity"]).startswith("GPU-")
    assert capped["start"] == "2026-03-02T08:40:00.000Z"
    assert capped["end"] == "2026-03-02T09:00:00.000Z"
    assert capped["start"] < capped["visible_from"] < capped["end"]
    assert capped["severity"] == 0.2
    benign = {line["kind"] for line in truth if line.get("benign")}
    assert {"driver_upgrade", "checkpoint"} <= benign


def test_counters_start_again_only_where_a_reset_is_labelled(recorded: Path) -> None:
    gpu = pq.read_table(recorded / "gpu.parquet").to_pylist()
    by_gpu: dict[str, list[dict[str, object]]] = {}
    for row in sorted(gpu, key=lambda row: row["sampled_at"]):
        by_gpu.setdefault(row["gpu_uuid"], []).append(row)
    fallen = {
        rows[0]["host"]
        for rows in by_gpu.values()
        if any(b["energy_mj"] < a["energy_mj"] for a, b in pairwise(rows))
    }
    assert fallen == {"rack-01-tray-05"}
    versions = {row["driver_version"] for row in gpu if row["host"] == "rack-01-tray-05"}
    assert len(versions) == 2


def test_the_same_scenario_gives_the_same_bytes(tmp_path: Path, contracts: Contracts) -> None:
    scenario = _load(tmp_path, _SCENARIO.replace("hours = 1.5", "hours = 0.75"))
    for name in ("a", "b"):
        record(scenario, tmp_path / name, contracts)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "gpu.parquet" in files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_a_fabric_read_by_ufm_is_recorded_as_ufm_gives_it(
    tmp_path: Path, contracts: Contracts
) -> None:
    text = _SCENARIO.split("[[fault]]")[0].replace("hours = 1.5", "hours = 0.1")
    text = text.replace("racks = 2", 'racks = 2\nfabric = "ufm"')
    record(_load(tmp_path, text), tmp_path / "set", contracts)
    ports = pq.read_table(tmp_path / "set" / "ib_port.parquet")
    assert pc.unique(ports["source"]).to_pylist() == ["ufm"]
    assert ports["fec_hist_0"].null_count == 0
    assert ports["rate_gbps"].null_count == ports.num_rows  # its records have none
    kinds = pc.unique(pq.read_table(tmp_path / "set" / "component.parquet")["entity_type"])
    assert "switch_chassis" not in kinds.to_pylist()


def test_another_seed_gives_another_hall(tmp_path: Path, contracts: Contracts) -> None:
    short = _SCENARIO.replace("hours = 1.5", "hours = 0.1")
    record(_load(tmp_path, short), tmp_path / "a", contracts)
    record(_load(tmp_path, short.replace("seed = 21", "seed = 22")), tmp_path / "b", contracts)
    gpus = [
        set(pq.read_table(tmp_path / name / "gpu.parquet")["gpu_uuid"].to_pylist())
        for name in ("a", "b")
    ]
    assert not gpus[0] & gpus[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('cause = "capped_clocks"', 'cause = "bad_luck"'), "No cause 'bad_luck'"),
        (("rack-01/tray-02/slot-1", "rack-09/tray-02/slot-1"), "No rack 'rack-09'"),
        (("rack-01/tray-02/slot-1", "rack-01/tray-99/slot-1"), "No GPU"),
        (("sample_s = 60", "sample_s = 7"), "multiple of step_s"),
        (("racks = 2", "racks = 0"), "hall.racks"),
        (("08:00:00Z", "08:00:00"), "time zone"),
        (("seed = 21", "sead = 21"), "hall.seed"),
        (("[hall]", "[hall"), "not TOML"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_key(
    tmp_path: Path, contracts: Contracts, change: tuple[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        record(_load(tmp_path, _SCENARIO.replace(*change)), tmp_path / "set", contracts)


def test_scenarios_of_the_repository_keep_their_seeds_apart() -> None:
    seeds: dict[int, set[str]] = {}
    for path in (Path(__file__).parents[1] / "scenarios").glob("*.toml"):
        scenario = load_scenario(path)
        seeds.setdefault(scenario.hall.seed, set()).add(scenario.purpose)
    assert len({purpose for each in seeds.values() for purpose in each}) >= 3
    for seed, purposes in seeds.items():
        assert len(purposes) == 1, f"hall seed {seed} serves {purposes}"


def test_doubled_and_late_pages_are_labelled_and_only_theirs(
    tmp_path: Path, contracts: Contracts
) -> None:
    text = (
        _SCENARIO.split("[[fault]]")[0].replace("hours = 1.5", "hours = 0.25")
        + """
[[benign]]
kind = "duplicate_scrapes"
entity = "rack-01-tray-03"
at_minute = 5
minutes = 4
[[benign]]
kind = "clock_skew"
entity = "rack-02-tray-01"
at_minute = 5
minutes = 4
level = 8.0
"""
    )
    record(_load(tmp_path, text), tmp_path / "set", contracts)
    gpu = pq.read_table(tmp_path / "set" / "gpu.parquet").to_pylist()
    counts = Counter((row["host"], row["gpu_uuid"], row["sampled_at"]) for row in gpu)
    doubled = {key[0] for key, count in counts.items() if count > 1}
    assert doubled == {"rack-01-tray-03"}
    assert sum(count - 1 for count in counts.values()) == 4 * 4  # four GPUs, four samples
    late = Counter(row["host"] for row in gpu if row["sampled_at"].second == 8)
    assert late == {"rack-02-tray-01": 16}
