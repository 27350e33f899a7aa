"""``rackpulse airflow``: Airflow on this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import sys

import click

from pipeline.airflow_local.connection import clickhouse_connection
from pipeline.airflow_local.home import AirflowHome, read_json
from pipeline.airflow_local.serve import AirflowRun, only_one
from pipeline.clock import SystemClock
from pipeline.errors import RackpulseError, missing_extra
from pipeline.service import setup_logging, stop_on_signals
from pipeline.settings import load_settings


@click.group()
def airflow() -> None:
    """Airflow on this machine."""


def _check_port(port: int) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as exc:
            raise RackpulseError(
                f"Port {port} is taken: stop what listens there, or give another with --port"
            ) from exc


def _airflow_version() -> str:
    try:
        return importlib.metadata.version("apache-airflow")
    except importlib.metadata.PackageNotFoundError as exc:
        raise missing_extra("apache-airflow", "airflow") from exc


@airflow.command()
@click.option("--port", type=click.IntRange(1, 65535), default=18081, show_default=True)
def serve(port: int) -> None:
    """Run Airflow with the project's Dags until Ctrl-C."""
    settings = load_settings()
    setup_logging(settings.log_format)
    version = _airflow_version()
    stop = stop_on_signals()
    clock = SystemClock()
    home = AirflowHome(settings.state_dir)
    with only_one(home):
        connection = clickhouse_connection(settings)
        env = home.environment(settings, port, connection, os.environ)
        run = AirflowRun(home, env, port, clock)
        if left := run.recover():
            click.echo(f"ended {left} processes that an earlier run had left behind")
        _check_port(port)
        login = home.login(port)
        try:
            click.echo("Airflow is starting (about half a minute) ...")
            if run.migrate(version, stop):
                run.start()
                if run.wait_ready(stop):
                    click.echo(f"Airflow is ready: {login.url}")
                    # A log keeps what it is told; a terminal is the person's own.
                    shown = login.password if sys.stdout.isatty() else f"in {home.login_file}"
                    click.echo(f"  user {login.user}, password {shown}")
                    if connection is None:
                        click.echo("  no store yet: tasks look for it when they run")
                    run.keep(stop)
        finally:
            stop.clear()
            click.echo("stopping Airflow ...")
            run.stop(hurry=stop.is_set)
            click.echo("Airflow has stopped")


@airflow.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def login(as_json: bool) -> None:
    """Show the address and the login of the UI."""
    found = read_json(AirflowHome(load_settings().state_dir).login_file)
    if not {"url", "user", "password"} <= set(found):
        raise RackpulseError("Airflow has not run here yet: start it with  rackpulse airflow serve")
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"{found['url']}\nuser {found['user']}\npassword {found['password']}")
