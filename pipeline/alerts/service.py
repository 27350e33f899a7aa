"""The delivery service: one thread per destination, each with its own client."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.alerts.delivery import Courier
from pipeline.alerts.destinations import Destination
from pipeline.alerts.outbox import Outbox
from pipeline.alerts.sender import Sender
from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.service import Health

log = logging.getLogger(__name__)

POLL_S = 1.5
_RETRY_STORE_S = 3.0


class Deliveries:
    """Runs the couriers until asked to stop.

    Args:
        connect: makes a client of the store; called in each courier's thread.
        airflow_url: for links.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        destinations: Sequence[Destination],
        default_secrets: Path,
        airflow_url: Callable[[], str | None],
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        self._connect = connect
        self._destinations = list(destinations)
        self._default_secrets = default_secrets
        self._airflow_url = airflow_url
        self._clock = clock
        self._problems: dict[str, str | None] = {d.name: "starting" for d in destinations}
        self._moved: dict[str, float] = {d.name: clock.monotonic() for d in destinations}
        self._attempts = Counter(
            "rackpulse_alert_attempts",
            "Attempts to deliver an alert",
            ["destination", "outcome"],
            registry=registry,
        )
        self._disabled = Gauge(
            "rackpulse_alert_destination_disabled",
            "1 while a destination is switched off",
            ["destination"],
            registry=registry,
        )

    def run(self, stop: threading.Event, health: Health, stuck_after_s: float = 90.0) -> None:
        """Serve all destinations until ``stop`` is set."""
        threads = [
            threading.Thread(
                target=self._serve, args=(destination, stop), name=destination.name, daemon=True
            )
            for destination in self._destinations
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(0.5):
            now = self._clock.monotonic()
            stuck = [name for name, at in self._moved.items() if now - at > stuck_after_s]
            if not stuck:
                health.beat()
            problems = [f"{name}: {what}" for name, what in self._problems.items() if what]
            if problems:
                health.not_ready("; ".join(problems))
            else:
                health.ready()
        for thread in threads:
            thread.join(timeout=5.0)

    def _serve(self, destination: Destination, stop: threading.Event) -> None:
        name = destination.name
        client: Client | None = None
        courier: Courier | None = None
        while not stop.is_set():
            pause = POLL_S
            try:
                if client is None:
                    client = self._connect()
                    outbox = Outbox(client, name, self._airflow_url())
                    if courier is None:
                        courier = self._courier(outbox, destination)
                    # The same courier: it may remember what is not written down yet.
                    courier.use(outbox)
                assert courier is not None
                self._round(courier, name)
            except (ClickHouseError, RackpulseError, OSError) as exc:
                self._say(name, _short(exc))
                pause = _RETRY_STORE_S
                if client is not None:
                    # The store may come back at another address.
                    client.close()
                    client = None
            except Exception:
                # One broken alert must not end the service; the next round tries again.
                log.exception("%s: a round failed", name)
                self._say(name, "a round failed, see the log")
                pause = _RETRY_STORE_S
            self._moved[name] = self._clock.monotonic()
            stop.wait(pause)
        if client is not None:
            client.close()

    def _courier(self, outbox: Outbox, destination: Destination) -> Courier:
        # The jitter of a schedule is no secret.
        rng = random.Random()  # noqa: S311
        sender = Sender(destination, self._default_secrets, self._clock)
        return Courier(outbox, sender, self._clock, rng)

    def _round(self, courier: Courier, name: str) -> None:
        counts = courier.round()
        for outcome in ("delivered", "failed", "gave_up"):
            number = getattr(counts, outcome)
            if number:
                self._attempts.labels(name, outcome).inc(number)
        why = courier.disabled_because()
        self._disabled.labels(name).set(0 if why is None else 1)
        self._say(name, None if why is None else f"switched off: {why}")

    def _say(self, name: str, problem: str | None) -> None:
        if problem != self._problems[name]:
            if problem:
                log.warning("%s: %s", name, problem)
            elif self._problems[name] != "starting":
                log.info("%s: all is well again", name)
        self._problems[name] = problem


def _short(exc: Exception) -> str:
    return str(exc).splitlines()[0][:300] if str(exc) else type(exc).__name__
