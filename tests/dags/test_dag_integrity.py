"""The Dags parse without a database, cheaply, and say what they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow", reason="needs the extra airflow")

DAGS = Path(__file__).resolve().parents[2] / "dags"
# What a Dag file must not load: the processor parses it again and again.
HEAVY = (
    "pandas", "pyarrow", "sklearn", "scipy", "skops", "clickhouse_connect", "chdb", "kafka",
    "pipeline.detection", "pipeline.store",
)  # fmt: skip

_PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
loaded = time.monotonic()
bag = DagBag(sys.argv[1])
found = {
    "errors": bag.import_errors,
    "seconds": time.monotonic() - loaded,
    "dags": {
        name: {
            "tags": sorted(dag.tags), "doc": dag.doc_md, "owner": dag.owner,
            "catchup": dag.catchup, "max_active_runs": dag.max_active_runs,
            "timeout": dag.dagrun_timeout is not None,
            "file": dag.fileloc,
            "tasks": {
                t.task_id: {
                    "retries": t.retries, "timeout": t.execution_timeout is not None,
                    "doc": t.doc_md or "", "upstream": sorted(t.upstream_task_ids),
                }
                for t in dag.tasks
            },
        }
        for name, dag in bag.dags.items()
    },
}
print("FOUND" + json.dumps(found))
"""

_IMPORTS = """
import importlib.util, json, sys
import airflow.sdk
import airflow.providers.standard.operators.trigger_dagrun
before = set(sys.modules)
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("dag_under_test", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
print("FOUND" + json.dumps(sorted(set(sys.modules) - before)))
"""


def run(home: Path, code: str, *arguments: str) -> Any:
    """Run code in a process of its own, with an Airflow home that holds no database."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**clean, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    return json.loads(line.removeprefix("FOUND"))


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("home")
    found = run(home, _PARSE, str(DAGS))
    assert not (home / "airflow.db").exists(), "parsing needs no database"
    return found


def test_all_of_them_parse(bag: Any) -> None:
    assert bag["errors"] == {}
    files = {Path(dag["file"]).name for dag in bag["dags"].values()}
    assert files == {path.name for path in DAGS.glob("*.py")}
    assert {"score_fleet", "train_detectors"} <= set(bag["dags"])
    assert bag["seconds"] < 10


def test_each_says_what_it_is(bag: Any) -> None:
    for name, dag in bag["dags"].items():
        assert "rackpulse" in dag["tags"], name
        assert dag["owner"] == "rackpulse", name
        assert dag["doc"] == (DAGS / f"{name}.md").read_text(), name
        assert dag["catchup"] is False, name
        assert dag["max_active_runs"] == 1, name
        assert dag["timeout"], name


def test_each_task_is_bounded_and_documented(bag: Any) -> None:
    for name, dag in bag["dags"].items():
        for task, facts in dag["tasks"].items():
            assert facts["retries"] >= 1, f"{name}.{task}"
            assert facts["timeout"], f"{name}.{task}"
            assert f"`{task}`" in dag["doc"], f"{name}.md does not speak of {task}"


def test_scoring_goes_gate_score_incidents(bag: Any) -> None:
    tasks = bag["dags"]["score_fleet"]["tasks"]
    assert tasks["gate"]["upstream"] == []
    assert tasks["score"]["upstream"] == ["gate"]
    assert "score" in tasks["incidents"]["upstream"]


def test_files_stay_small_and_import_nothing_heavy(tmp_path: Path) -> None:
    files = sorted(DAGS.glob("*.py"))
    for path in files:
        assert len(path.read_text().splitlines()) <= 80, f"{path.name}: move work to pipeline"
    loaded = run(tmp_path, _IMPORTS, *map(str, files))
    heavy = [
        name for name in loaded
        if any(name == bad or name.startswith(f"{bad}.") for bad in HEAVY)
    ]  # fmt: skip
    assert heavy == []
