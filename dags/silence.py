"""Silence something for maintenance, by a form."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, Param, RetryRule, dag, task
from airflow.sdk.definitions.retry_policy import RetryAction

RETRY = ExceptionRetryPolicy([RetryRule("pipeline.errors.RackpulseError", RetryAction.FAIL)])
SCOPES = ["rack", "host", "gpu", "ib_port", "ib_switch", "cdu", "job", "all"]


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=5),
    default_args={
        "owner": "rackpulse",
        "retries": 2,
        "retry_delay": timedelta(seconds=5),
        "retry_policy": RETRY,
        "execution_timeout": timedelta(minutes=1),
    },
    params={
        "scope": Param("rack", type="string", enum=SCOPES, title="What"),
        "name": Param("", type="string", title="Its name", description="rack-03; empty for all"),
        "minutes": Param(120, type="integer", minimum=1, maximum=43200, title="For minutes"),
        "reason": Param("", type="string", title="Why", description="Such as a ticket's number"),
        "detector": Param("", type="string", description="Empty for all detectors"),
    },
    doc_md=str(Path(__file__).with_suffix(".md")),
    tags=["rackpulse", "operators"],
)
def silence() -> None:
    @task
    def silence(params: dict[str, Any] | None = None, dag_run: Any = None) -> Any:
        """Write the silence; it holds from now on."""
        from pipeline.airflow_plugin import store_client
        from pipeline.dag_steps import silence_for

        who = getattr(dag_run, "triggering_user_name", None) or "airflow"
        with store_client() as client:
            return silence_for(client, params or {}, since=dag_run.run_after, by=who)

    silence()


silence()
