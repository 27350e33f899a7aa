"""Score the fleet every minute; open, update and resolve incidents."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import CronTriggerTimetable, ExceptionRetryPolicy, Param, RetryRule, dag, task
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowSkipException

MODELS = (Path(__file__).resolve().parents[1] / "models").glob("*/detector.toml")
DETECTORS = sorted(path.parent.name for path in MODELS)
HOPELESS: list[Any] = ["pipeline.errors.ConfigError", "pipeline.dag_steps.NotScoredError"]
RETRY = ExceptionRetryPolicy([RetryRule(HOPELESS, RetryAction.FAIL)])
WINDOW = Param(None, type=["null", "string"], format="date-time", title="Past minute to redo")


@dag(
    schedule=CronTriggerTimetable("* * * * *", timezone="UTC", interval=timedelta(minutes=1)),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=5),
    default_args={
        "owner": "rackpulse",
        "retries": 2,
        "retry_delay": timedelta(seconds=3),
        "retry_policy": RETRY,
        "execution_timeout": timedelta(minutes=2),
    },
    params={"window_end": WINDOW},
    doc_md=str(Path(__file__).with_suffix(".md")),
    tags=["rackpulse", "detection"],
)
def score_fleet() -> None:
    @task
    def gate(params: dict[str, Any] | None = None, dag_run: Any = None, ti: Any = None) -> Any:
        """Wait for the window's rows; return the training runs that are due."""
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import minute_of, prepare_scoring

        busy = ti.get_dr_count("train_detectors", states=["queued", "running"]) > 0
        with store_client() as client:
            end = minute_of(dag_run, params, "window_end")
            ready = prepare_scoring(client, end, DETECTORS, in_training=busy)
        for name in ("window_end", "live"):
            ti.xcom_push(name, ready[name])
        return ready["training"]

    @task(map_index_template="{{ task.op_kwargs['detector'] }}")
    def score(detector: str, window_end: str, live: list[str]) -> Any:
        """Score every entity of one detector in this window."""
        if detector not in live:
            raise AirflowSkipException(f"{detector} has no live model yet")
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import score_window

        with store_client() as client:
            return score_window(client, window_end, detector)

    @task(trigger_rule="all_done")
    def incidents(window_end: str, live: list[str]) -> Any:
        """Open, update and resolve incidents from the findings of all that were scored."""
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import step_incidents

        with store_client() as client:
            return step_incidents(client, window_end, live)

    ready: Any = gate()
    facts = {"window_end": ready["window_end"], "live": ready["live"]}
    score.partial(**facts).expand(detector=DETECTORS) >> incidents(**facts)
    TriggerDagRunOperator.partial(
        task_id="train_first", trigger_dag_id="train_detectors", skip_when_already_exists=True
    ).expand_kwargs(ready)


score_fleet()
