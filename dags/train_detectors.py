"""Train the detectors every week; a model goes live only through its gates."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import CronTriggerTimetable, ExceptionRetryPolicy, Param, RetryRule, dag, task
from airflow.sdk.definitions.retry_policy import RetryAction

RETRY = ExceptionRetryPolicy([RetryRule("pipeline.errors.ConfigError", RetryAction.FAIL)])
SHORTLY = timedelta(minutes=5)
DETECTORS = Param(
    [],
    type="array",
    items={"type": "string"},
    title="Detectors",
    description="One name per line, such as straggler_gpu; leave empty for all.",
)
UNTIL = Param(
    None,
    type=["null", "string"],
    format="date-time",
    title="Learn from the time before",
    description="Leave empty for everything up to now.",
)


@dag(
    # Without a start date and with a short reach back: a new installation waits for Monday.
    schedule=CronTriggerTimetable("17 3 * * 1", timezone="UTC", run_immediately=SHORTLY),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    default_args={
        "owner": "rackpulse",
        "retries": 1,
        "retry_delay": timedelta(seconds=30),
        "retry_policy": RETRY,
        "execution_timeout": timedelta(hours=1),
    },
    params={"detectors": DETECTORS, "until": UNTIL},
    doc_md=str(Path(__file__).with_suffix(".md")),
    tags=["rackpulse", "detection"],
)
def train_detectors() -> None:
    @task
    def choose(params: dict[str, Any] | None = None, dag_run: Any = None) -> Any:
        """Which detectors to train, and up to when."""
        from pipeline.dag_steps import choose_detectors, minute_of

        until = minute_of(dag_run, params, "until").isoformat()
        detectors = choose_detectors((params or {}).get("detectors") or [])
        return [{"detector": detector, "until": until} for detector in detectors]

    # One after the other: each takes a core and some hundred megabytes.
    @task(map_index_template="{{ task.op_kwargs['detector'] }}", max_active_tis_per_dagrun=1)
    def train(detector: str, until: str) -> Any:
        """Train one detector; its gates decide whether the model goes live."""
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import train_detector

        with store_client() as client:
            return train_detector(client, detector, until)

    train.expand_kwargs(choose())


train_detectors()
