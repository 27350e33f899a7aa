"""The services of one machine, in the order in which they start."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT

import httpx

from pipeline.up.process import ServiceSpec, rackpulse_command


@dataclass(frozen=True)
class Plan:
    """What the person asked for.

    Attributes:
        racks: racks of the virtual hall; None takes those of an earlier start.
        seed: of the hall; None likewise.
        history_hours: hours of history that a first start writes.
    """

    racks: int | None
    seed: int | None
    history_hours: float


def http_ready(url: str, waiting_for: str) -> Callable[[], str | None]:
    """Ready when the URL answers 2xx; else a word about what it says."""

    def check() -> str | None:
        try:
            answer = httpx.get(url, timeout=2.0, follow_redirects=False)
        except httpx.HTTPError:
            return waiting_for
        if answer.is_success:
            return None
        text = answer.text.strip().splitlines()
        return text[0][:120] if text and len(text[0]) < 120 else waiting_for

    return check


def _kafka_ready(state_dir: Path) -> Callable[[], str | None]:
    def check() -> str | None:
        # Imported here: the supervisor needs Kafka's client only once a broker runs.
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        endpoint = state_dir / "kafka" / "endpoint.json"
        if not endpoint.exists():
            return "starting the broker (the first time it is fetched)"
        try:
            address = json.loads(endpoint.read_text(encoding="utf-8"))["bootstrap_servers"]
            admin = KafkaAdminClient(bootstrap_servers=address, request_timeout_ms=3000)
            try:
                admin.list_topics()
            finally:
                admin.close()
        except (KafkaError, OSError, ValueError, KeyError):
            return "waiting for the broker to answer"
        return None

    return check


def broker(state_dir: Path, port: int) -> ServiceSpec:
    """The Kafka broker of this machine."""
    return ServiceSpec(
        name="kafka",
        argv=rackpulse_command("broker", "serve", "--port", str(port)),
        ready=_kafka_ready(state_dir),
        start_timeout_s=300,
        stop_grace_s=30,
        url=f"127.0.0.1:{port}",
    )


def store(port: int) -> ServiceSpec:
    """The embedded ClickHouse store."""
    return ServiceSpec(
        name="store",
        argv=rackpulse_command("store", "serve", "--port", str(port)),
        ready=http_ready(f"http://127.0.0.1:{port}/ping", "opening the database"),
        start_timeout_s=120,
        stop_grace_s=60,
        url=f"http://127.0.0.1:{port}",
    )


def writer(port: int) -> ServiceSpec:
    """Kafka to ClickHouse."""
    return ServiceSpec(
        name="writer",
        argv=rackpulse_command("write", "--metrics-port", str(port)),
        ready=http_ready(f"http://127.0.0.1:{port}/readyz", "joining its consumer group"),
        start_timeout_s=120,
        stop_grace_s=30,
        url=f"http://127.0.0.1:{port}/metrics",
    )


def hall(plan: Plan, port: int) -> ServiceSpec:
    """The virtual GPU hall."""
    asked = {"--racks": plan.racks, "--seed": plan.seed}
    options = [w for name, n in asked.items() if n is not None for w in (name, str(n))]
    return ServiceSpec(
        name="hall",
        argv=rackpulse_command(
            "hall", "serve", *options,
            "--history-hours", f"{plan.history_hours:g}", "--port", str(port),
        ),
        ready=http_ready(f"http://127.0.0.1:{port}/readyz", "writing its history to Kafka"),
        start_timeout_s=420,
        url=f"http://127.0.0.1:{port}/hall/state",
    )  # fmt: skip


def collector(state_dir: Path, port: int) -> ServiceSpec:
    """Reads the hall over HTTP."""
    hall_dir = state_dir / "hall"
    return ServiceSpec(
        name="collector",
        argv=rackpulse_command(
            "collect", "run", "--targets", str(hall_dir / "targets.json"),
            "--topology", str(hall_dir / "topology.json"), "--metrics-port", str(port),
        ),
        ready=http_ready(f"http://127.0.0.1:{port}/readyz", "reading its first targets"),
        start_timeout_s=90,
        stop_grace_s=30,
        url=f"http://127.0.0.1:{port}/metrics",
    )  # fmt: skip


def receiver(port: int, columns: int, colour: bool) -> ServiceSpec:
    """Prints alerts in this terminal, as wide as it is."""
    return ServiceSpec(
        name="alert-receiver",
        argv=rackpulse_command("alerts", "receive", "--port", str(port)),
        ready=http_ready(f"http://127.0.0.1:{port}/readyz", "opening its port"),
        start_timeout_s=60,
        on_console=True,
        env={"COLUMNS": str(columns), **({"FORCE_COLOR": "1"} if colour else {})},
        url=f"http://127.0.0.1:{port}",
    )


def delivery(webhook_url: str, port: int) -> ServiceSpec:
    """Sends webhooks."""
    return ServiceSpec(
        name="alert-delivery",
        argv=rackpulse_command("alerts", "deliver", "--metrics-port", str(port)),
        # Not as an argument, which every user of the machine could read.
        env={"RACKPULSE_WEBHOOK_URL": webhook_url},
        ready=http_ready(f"http://127.0.0.1:{port}/readyz", "reading the outbox"),
        start_timeout_s=60,
        url=f"http://127.0.0.1:{port}/metrics",
    )


def airflow(port: int) -> ServiceSpec:
    """Airflow with the project's Dags."""
    return ServiceSpec(
        name="airflow",
        argv=rackpulse_command("airflow", "serve", "--port", str(port)),
        ready=http_ready(f"http://127.0.0.1:{port}/api/v2/monitor/health", "Airflow is starting"),
        start_timeout_s=240,
        stop_signal=SIGINT,
        stop_grace_s=45,
        url=f"http://127.0.0.1:{port}",
    )
