"""Airflow's side of rackpulse: the store's client inside tasks, and the UI plugin.

The only module of the package that imports Airflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CONNECTION_ID = "clickhouse_default"


@contextmanager
def store_client() -> Iterator[Client]:
    """The store's client inside a task, closed at the end of the block.

    Its credentials come from the Connection ``clickhouse_default``; where there is none,
    from our own settings, as outside Airflow.
    """
    from airflow.providers.clickhousedb.hooks.clickhouse import ClickHouseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        client = ClickHouseHook(clickhouse_conn_id=CONNECTION_ID).get_client()
    except AirflowNotFoundException:
        from pipeline.settings import load_settings
        from pipeline.store import connect

        client = connect(load_settings())
    try:
        yield client
    finally:
        client.close()


class RackpulsePlugin(AirflowPlugin):
    """What Airflow loads by the entry point ``airflow.plugins``."""

    name = "rackpulse"
