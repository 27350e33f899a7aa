"""One run of ``rackpulse up``: install nothing, start everything, watch it, stop it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from clickhouse_connect.driver.exceptions import ClickHouseError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.bus.endpoint import read_endpoint
from pipeline.bus.topics import create_topics
from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from pipeline.store import connect, migrate
from pipeline.streams import Contracts
from pipeline.up import live, services
from pipeline.up.faults import FaultStarter
from pipeline.up.observe import Observer, StreamStatus, as_json
from pipeline.up.ports import choose_ports
from pipeline.up.process import MARK, ServiceSpec, end_leftovers
from pipeline.up.runfile import is_running, only_one, ports_of, read_run, write_run
from pipeline.up.services import Plan
from pipeline.up.supervisor import StoppedEarlyError, Supervisor, nothing_left, supervised

_LOOK_EVERY_S = 5.0
_PLAIN_EVERY_S = 30.0


class _Stop:
    """Ctrl-C or SIGTERM once: stop in order. Twice: stop at once."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.times = 0

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        self.times += 1
        self.event.set()

    def hurry(self) -> bool:
        return self.times > 1


@contextmanager
def _signals(stop: _Stop) -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Run:
    """Everything that one ``rackpulse up`` does."""

    def __init__(
        self,
        settings: Settings,
        contracts: Contracts,
        plan: Plan,
        faults_seed: int | None,
        asked_ports: dict[str, int],
        console: Console,
        clock: Clock,
        *,
        faults_beside_others: bool = True,
    ) -> None:
        self._settings = settings
        self._contracts = contracts
        self._plan = plan
        self._faults_seed = faults_seed
        self._faults_beside_others = faults_beside_others
        self._asked_ports = asked_ports
        self._console = console
        self._clock = clock
        self._state_dir = settings.state_dir.resolve()
        self._started_at = clock.now()
        self._urls: dict[str, str] = {}
        self._run_id = secrets.token_hex(8)
        self._stop = _Stop()
        self._write_error = ""

    def _say(self, text: str) -> None:
        # Alerts come with their colours.
        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def run(self) -> None:
        """Start, watch until asked to stop, stop.

        Raises:
            RackpulseError: something could not be started; everything else was stopped again.
        """
        with only_one(self._state_dir), _signals(self._stop):
            ports = self._prepare()
            supervisor = Supervisor(
                self._state_dir / "logs", self._environment(), self._clock, self._say,
                self._stop.event,
            )  # fmt: skip
            try:
                with supervised(supervisor, self._stop.hurry):
                    self._start(supervisor, ports)
                    self._watch(supervisor)
            except StoppedEarlyError:
                self._say("stopped while starting")
            finally:
                end_leftovers(self._run_id, self._clock, grace_s=5)
                self._write_run(supervisor, [], [], "stopped")
            if not nothing_left(self._run_id):
                raise RackpulseError("Some processes did not end; see  ps  for python and java")
            self._say("all stopped")

    def _prepare(self) -> dict[str, int]:
        before = read_run(self._state_dir)
        if before.get("run_id"):
            if is_running(before) and before.get("pid") != os.getpid():
                self._say("an earlier run left its record behind; looking for its processes")
            ended = end_leftovers(str(before["run_id"]), self._clock)
            if ended:
                self._say(f"ended {len(ended)} processes that an earlier run left behind")
        # The same addresses as last time, where they are free.
        ports, notes = choose_ports(self._asked_ports, ports_of(before))
        for note in notes:
            self._say(note)
        self._ports = ports
        return ports

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            MARK: self._run_id,
            "RACKPULSE_STATE_DIR": str(self._state_dir),
            "RACKPULSE_CLUSTER": self._settings.cluster,
            "PYTHONUNBUFFERED": "1",
        }

    def _start(self, supervisor: Supervisor, ports: dict[str, int]) -> None:
        state_dir = self._state_dir
        embedded_store = self._settings.store_dsn is None
        own_broker = self._settings.bootstrap_servers is None
        with self._console.status("starting") as status:

            def progress(name: str) -> Any:
                return lambda waiting: status.update(f"{name}: {waiting}")

            def start(spec: ServiceSpec) -> Any:
                if not self._console.is_terminal:
                    self._say(f"starting {spec.name}")
                if spec.url:
                    self._urls[spec.name] = spec.url
                service = supervisor.start(spec)
                self._write_run(supervisor, [], [], "starting")
                return service

            first = []
            if own_broker:
                first.append(start(services.broker(state_dir, ports["kafka"])))
            if embedded_store:
                first.append(start(services.store(ports["store"])))
            for service in first:
                supervisor.wait_ready(service, progress(service.spec.name))
            self._say(_broker_line(state_dir, own_broker, self._settings))
            status.update("bringing the database to this version")
            with connect(self._settings) as client:
                done = migrate(client, self._settings, self._contracts)
            self._say(f"database ready ({len(done)} changes)" if done else "database ready")
            create_topics(self._settings)

            writer = start(services.writer(ports["writer"]))
            console = self._console
            receiver = start(
                services.receiver(
                    ports["alert-receiver"], min(console.width, 110), console.is_terminal
                )
            )
            airflow = start(services.airflow(ports["airflow"]))
            supervisor.wait_ready(writer, progress("writer"))
            hall = start(services.hall(self._plan, ports["hall"]))
            supervisor.wait_ready(receiver, progress("alert-receiver"))
            webhook = self._settings.webhook_url or (
                f"http://127.0.0.1:{ports['alert-receiver']}/webhooks"
            )
            delivery = start(services.delivery(webhook, ports["alert-delivery"]))
            supervisor.wait_ready(hall, progress("hall"))
            collector = start(services.collector(state_dir, ports["collector"]))
            for service in (collector, delivery, airflow):
                supervisor.wait_ready(service, progress(service.spec.name))
        took = (self._clock.now() - self._started_at).total_seconds()
        self._say(f"everything runs, {took:.0f} s after the start")

    def _watch(self, supervisor: Supervisor) -> None:
        with connect(self._settings) as client:
            observer = Observer(client, self._settings, self._contracts, self._clock)
            hall = f"http://127.0.0.1:{self._ports['hall']}"
            starter = FaultStarter(
                self._faults_seed, hall, self._say, beside_others=self._faults_beside_others
            )
            addresses = self._addresses()
            for name, address in addresses.items():
                self._say(f"{name:18} {address}")
            streams: list[StreamStatus] = []
            incidents: list[dict[str, Any]] = []
            view = Live(console=self._console, auto_refresh=False, transient=True)
            terminal = self._console.is_terminal
            last_line = self._clock.monotonic() - _PLAIN_EVERY_S
            if terminal:
                view.start()
            try:
                while not self._stop.event.is_set():
                    supervisor.watch()
                    now = self._clock.now()
                    try:
                        streams, incidents = observer.streams(), observer.incidents()
                        judged = observer.scoring()
                        scoring = judged.text(now)
                        starter.step(judged, incidents, now)
                    except (ClickHouseError, RackpulseError) as exc:
                        # The store was killed or is slow: the view says so and goes on.
                        scoring = f"the store does not answer: {str(exc)[:80]}"
                    self._write_run(supervisor, as_json(streams), incidents, "running")
                    if terminal:
                        states = {s.spec.name: s.state for s in supervisor.services}
                        view.update(
                            live.screen(states, streams, scoring, incidents, addresses, now),
                            refresh=True,
                        )
                    elif self._clock.monotonic() - last_line >= _PLAIN_EVERY_S:
                        last_line = self._clock.monotonic()
                        self._say(live.plain_line(streams, scoring, incidents))
                    self._stop.event.wait(_LOOK_EVERY_S)
            finally:
                if terminal:
                    view.stop()

    def _addresses(self) -> dict[str, str]:
        command = _command_here()
        found = {
            "Airflow UI": f"{self._urls['airflow']}   login: {command} airflow login",
            "virtual hall": self._urls["hall"],
        }
        if "store" in self._urls:
            found["ClickHouse HTTP"] = (
                f"{self._urls['store']}   users: {self._state_dir / 'store' / 'users.json'}"
            )
        found["SQL"] = f'{command} sql "select count() from telemetry.gpu"'
        found["logs"] = str(self._state_dir / "logs")
        return found

    def _write_run(
        self, supervisor: Supervisor, streams: list[Any], incidents: list[Any], state: str
    ) -> None:
        run = {
            "run_id": self._run_id,
            "pid": os.getpid(),
            "state": state,
            "at": self._clock.now().isoformat(),
            "ports": self._ports,
            "urls": self._urls,
            "services": [
                {
                    "name": service.spec.name,
                    "state": service.state,
                    "pid": service.pid,
                    "restarts": service.restarts,
                }
                for service in supervisor.services
            ],
            "streams": streams,
            "incidents": incidents,
        }
        try:
            write_run(self._state_dir, run)
        except OSError as exc:
            # A full disk must not end what still runs.
            if str(exc) != self._write_error:
                self._say(f"cannot write {self._state_dir / 'up.json'}: {exc.strerror}")
            self._write_error = str(exc)
        else:
            self._write_error = ""


def _command_here() -> str:
    """How the person calls rackpulse in this folder."""
    if shutil.which("rackpulse"):
        return "rackpulse"
    return os.path.relpath(Path(sys.executable).parent / "rackpulse")


def _broker_line(state_dir: Path, own: bool, settings: Settings) -> str:
    if not own:
        return f"Kafka: configured servers {settings.bootstrap_servers}"
    endpoint = read_endpoint(state_dir)
    if endpoint and endpoint.kind == "tansu":
        return "Kafka: the wheel's broker, in memory only (Java 17 and Maven bring Apache Kafka)"
    return "Kafka: Apache Kafka, started here"
