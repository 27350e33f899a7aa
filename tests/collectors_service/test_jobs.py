"""Jobs come from the exporter, else from the scheduler's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.collectors.jobs import Work, load_jobs
from pipeline.collectors.service import Collector
from pipeline.errors import ConfigError
from tests.collectors_service.helpers import MemorySink, run_service, until, write_targets
from tests.support.exporters import exporters


def write(tmp_path: Path, text: str | dict[str, Any]) -> Path:
    path = tmp_path / "jobs"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


SQUEUE = {
    "jobs": [
        {"job_id": 7, "job_state": ["RUNNING"], "nodes": "h[1-2]"},
        {"job_id": 8, "job_state": "RUNNING", "nodes": "h3",
         "gres_detail": ["gpu:gb300:2(IDX:0-1)"]},
        {"job_id": 9, "job_state": ["RUNNING"], "nodes": "h3", "gres_detail": ["gpu:1(IDX:3)"]},
        {"job_id": 10, "job_state": ["PENDING"], "nodes": ""},
        {"job_id": 11, "job_state": ["RUNNING"], "nodes": "h4"},
        {"job_id": 12, "job_state": ["RUNNING"], "nodes": "h4"},
        {"job_id": 13, "job_state": ["RUNNING"], "nodes": "h5",
         "array_job_id": {"set": True, "number": 5}, "array_task_id": {"set": True, "number": 2}},
        {"job_id": 14, "job_state": ["RUNNING"], "nodes": "h[6"},
        "nonsense",
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("host", "index", "job"),
    [
        ("h1", 0, "7"), ("h2", 3, "7"), ("h3", 0, "8"), ("h3", 1, "8"), ("h3", 3, "9"),
        ("h3", 2, None), ("h5", 0, "5_2"), ("h6", 0, None), ("h9", 0, None),
        # Two jobs share the host, and nobody says whose GPU is whose.
        ("h4", 0, None),
    ],
)  # fmt: skip
def test_squeue(tmp_path: Path, host: str, index: int, job: str | None) -> None:
    found = load_jobs(write(tmp_path, SQUEUE)).find("GPU-x", host, index)
    assert found == (Work(job) if job else None)


ODD = {
    "jobs": [
        {"job_id": 1, "job_state": ["RUNNING"], "nodes": "a",
         "gres_detail": ["gpu:x:2(IDX:0-1),gpu:y:1(IDX:3)"]},
        {"job_state": ["RUNNING"], "nodes": "b"},
        {"job_id": None, "job_state": ["RUNNING"], "nodes": "b"},
        {"job_id": {"set": True, "number": 7}, "job_state": ["RUNNING"], "nodes": "c"},
        {"job_id": 2, "job_state": ["RUNNING"], "nodes": "d", "gres_detail": ["gpu:1(IDX:0)"]},
        {"job_id": 3, "job_state": ["COMPLETING"], "nodes": "d", "gres_detail": ["gpu:1(IDX:0)"]},
        {"job_id": 9, "job_state": ["RUNNING"], "nodes": "e",
         "array_job_id": {"set": True, "number": 8},
         "array_task_id": {"set": False, "number": 0}},
        {"job_id": 10, "job_state": ["RUNNING"], "nodes": "f",
         "gres_detail": ["gpu:1(IDX:" + "9" * 5_000 + ")"]},
        {"job_id": "j\ud800", "job_state": ["RUNNING"], "nodes": "g"},
        {"job_id": 11, "job_state": ["COMPLETING"], "nodes": "h"},
        {"job_id": 12, "job_state": ["RUNNING"], "nodes": "h"},
        {"job_id": 13, "job_state": ["COMPLETING"], "nodes": "i"},
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("host", "index", "job"),
    [
        ("a", 1, "1"), ("a", 3, "1"), ("b", 0, None), ("c", 0, "7"),
        # A job that ends gives way to the one that runs.
        ("d", 0, "2"), ("h", 0, "12"), ("i", 0, "13"),
        ("e", 0, "9"), ("f", 9, None), ("g", 0, "j?"),
    ],
)  # fmt: skip
def test_odd_fields_of_squeue_cost_their_own_job(
    tmp_path: Path, host: str, index: int, job: str | None
) -> None:
    jobs = load_jobs(write(tmp_path, ODD))
    assert jobs.find("GPU-x", host, index) == (Work(job) if job else None)


def test_a_job_that_no_encoder_takes_costs_no_row(tmp_path: Path) -> None:
    jobs = load_jobs(write(tmp_path, ODD))
    table = pa.table({"gpu_uuid": ["GPU-a", "GPU-b"], "host": ["g", "c"]})
    assert jobs.fill(table).column("job_id").to_pylist() == ["j?", "7"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    marked = load_jobs(write(tmp_path, "\ufeffjob_id,host\nj1,h1\n"))
    assert marked.find(None, "h1", 0) == Work("j1")
    assert load_jobs(write(tmp_path, "\ufeff" + json.dumps(SQUEUE))).find(None, "h1", 0)


def test_csv(tmp_path: Path) -> None:
    jobs = load_jobs(
        write(
            tmp_path,
            "job_id,gpu_uuid,host,gpu_index,job_role\n"
            "j1,GPU-a,,,pp0\nj1,,h1,1,pp1\nj2,,h2,,\n,GPU-b,,,\n",
        )
    )
    assert jobs.find("GPU-a", "h9", 0) == Work("j1", "pp0")
    assert jobs.find("GPU-z", "h1", 1) == Work("j1", "pp1")
    assert jobs.find("GPU-z", "h2", 5) == Work("j2")
    assert jobs.find("GPU-b", "h1", 0) is None


def test_what_the_exporter_says_counts(tmp_path: Path) -> None:
    jobs = load_jobs(write(tmp_path, "job_id,host,job_role\nj1,h1,pp0\n"))
    table = pa.table(
        {
            "gpu_uuid": ["GPU-a", "GPU-b", "GPU-c", "GPU-d"],
            "host": ["h1", "h1", "h1", "h2"],
            "job_id": pa.array([None, "other", "j1", None], pa.string()),
            "job_role": pa.array([None, None, "pp9", None], pa.string()),
        }
    )
    filled = jobs.fill(table)
    assert filled.column("job_id").to_pylist() == ["j1", "other", "j1", None]
    assert filled.column("job_role").to_pylist() == ["pp0", None, "pp9", None]


@pytest.mark.parametrize("text", ["", "{", "{}", "a,b\n1,2\n", '{"jobs": 5}', "x" * 200_000])
def test_what_is_no_job_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="Job file"):
        load_jobs(write(tmp_path, text))


def test_the_service_watches_the_file(tmp_path: Path) -> None:
    sink, path = MemorySink(), tmp_path / "jobs.csv"
    with exporters() as server:
        files = [
            write_targets(
                tmp_path / "t.json",
                [{"name": "dcgm/a", "kind": "dcgm", "host": "a", "interval_s": 0.1,
                  "timeout_s": 0.1, "url": f"http://127.0.0.1:{server.port}/ok/a"}],
            )
        ]  # fmt: skip

        async def script(service: Collector) -> None:
            await until(lambda: sink.rows("gpu"), "rows")
            for job in ("j1", "j2"):
                path.write_text(f"job_id,host\n{job},a\n")
                await until(lambda: sink.rows("gpu")[-1]["job_id"] == job, job)  # noqa: B023
            path.write_text("broken")
            count = len(sink.rows("gpu"))
            await until(lambda: len(sink.rows("gpu")) > count + 8, "more rows")

        run_service(files, sink, script, jobs_path=path)
    assert sink.rows("gpu")[0]["job_id"] is None
    assert sink.rows("gpu")[-1]["job_id"] == "j2"
