"""Fire drill: a fault in a shadow hall has to come out as an alert."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import CronTriggerTimetable, Param, dag, task


@dag(
    schedule=CronTriggerTimetable("23 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    dagrun_timeout=timedelta(minutes=30),
    default_args={
        "owner": "rackpulse",
        "retries": 1,
        "retry_delay": timedelta(minutes=1),
        "execution_timeout": timedelta(minutes=20),
    },
    params={
        "fault": Param("", type="string", description="Such as capped_clocks; empty takes turns."),
    },
    doc_md=str(Path(__file__).with_suffix(".md")),
    tags=["rackpulse", "operators"],
)
def fire_drill() -> None:
    @task
    def drill(params: dict[str, Any] | None = None, dag_run: Any = None) -> Any:
        """Run one drill; red when the pipeline did not see the fault."""
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import minute_of, run_fire_drill

        fault = (params or {}).get("fault") or ""
        with store_client() as client:
            return run_fire_drill(client, fault, minute_of(dag_run, None, ""))

    drill()


fire_drill()
