"""Compute the minutes of each stream that are missing or out of date."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import CronTriggerTimetable, dag, task


@dag(
    schedule=CronTriggerTimetable("*/10 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=30),
    default_args={
        "owner": "rackpulse",
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "execution_timeout": timedelta(minutes=20),
    },
    doc_md=str(Path(__file__).with_suffix(".md")),
    tags=["rackpulse", "store"],
)
def sum_up_minutes() -> None:
    @task
    def sum_up(dag_run: Any = None) -> Any:
        """All streams, the last three hours."""
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import minute_of, sum_up_streams

        with store_client() as client:
            return sum_up_streams(client, minute_of(dag_run, None, ""))

    sum_up()


sum_up_minutes()
