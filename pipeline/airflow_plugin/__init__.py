"""Airflow's side of rackpulse: the store's client inside tasks, and the fleet page.

The only place of the package that imports Airflow. Every process of Airflow loads this
module, so what only the page needs is in ``api`` and is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CONNECTION_ID = "clickhouse_default"
PREFIX = "/rackpulse"


def new_client() -> Client:
    """A client of the store.

    Its credentials come from the Connection ``clickhouse_default``; where there is none,
    from our own settings, as outside Airflow.
    """
    from airflow.providers.clickhousedb.hooks.clickhouse import ClickHouseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return ClickHouseHook(clickhouse_conn_id=CONNECTION_ID).get_client()
    except AirflowNotFoundException:
        from pipeline.settings import load_settings
        from pipeline.store import connect

        return connect(load_settings())


@contextmanager
def store_client() -> Iterator[Client]:
    """The store's client inside a task, closed at the end of the block."""
    client = new_client()
    try:
        yield client
    finally:
        client.close()


class _LazyApp:
    """The page's web application, made at its first request."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if self._app is None:
            from pipeline.airflow_plugin.api import make_app

            self._app = make_app(new_client)
        await self._app(scope, receive, send)


class RackpulsePlugin(AirflowPlugin):
    """What Airflow loads by the entry point ``airflow.plugins``."""

    # Airflow declares these as lists of the instance, and reads them from the class: ClassVar,
    # which RUF012 asks for, would contradict its types.
    name = "rackpulse"
    fastapi_apps = [{"app": _LazyApp(), "url_prefix": PREFIX, "name": "rackpulse"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Fleet",
            "href": f"{PREFIX}/fleet",
            "destination": "nav",
            "url_route": "fleet",
            "nav_top_level": True,
            "icon": f"{PREFIX}/static/fleet.svg",
            "icon_dark_mode": f"{PREFIX}/static/fleet-dark.svg",
        }
    ]
