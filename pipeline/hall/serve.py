"""``rackpulse hall serve``: one process, history first, then pages."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import uvicorn

from pipeline.clock import Clock, SystemClock
from pipeline.hall.app import HallApp
from pipeline.hall.fleet import Fleet
from pipeline.hall.history import History, kafka_outlet_maker
from pipeline.hall.layout import topology_of
from pipeline.hall.live import LiveHall
from pipeline.hall.targets import targets_of
from pipeline.listening import HOST, listen
from pipeline.settings import Settings
from pipeline.streams import Contracts

log = logging.getLogger("rackpulse.hall")


def state_file(settings: Settings) -> Path:
    """Where the hall of this state folder is kept."""
    return settings.state_dir / "hall" / "state.npz"


def serve(
    settings: Settings,
    contracts: Contracts,
    fleet: Fleet,
    *,
    port: int,
    history_hours: float = 0.0,
    faults_seed: int | None = None,
    fabric: str = "ib_exporter",
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Serve a hall until SIGTERM or Ctrl-C.

    Args:
        port: 0 takes a free one; the address is said and stands in ``targets.json``.
        history_hours: written on a first start only.
        faults_seed: draws three faults once the hall is ready.
        fabric: who reads the fabric; see :func:`pipeline.hall.targets.targets_of`.

    Raises:
        RackpulseError: the port is taken, Kafka does not take the history, or the state is
            that of another hall.
    """
    clock = clock or SystemClock()
    folder = state_file(settings).parent
    live = LiveHall(fleet, clock, state_file(settings), history_s=3600.0 * history_hours)
    config = uvicorn.Config("", log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    sock = listen(port)
    address = f"http://{HOST}:{sock.getsockname()[1]}"
    targets = targets_of(fleet, address, fabric=fabric)
    _write_json(folder / "topology.json", topology_of(fleet).model_dump_json(exclude_none=True))
    _write_json(folder / "targets.json", json.dumps(targets, indent=1))
    failures: list[BaseException] = []
    server = uvicorn.Server(config)

    def fail(exc: BaseException) -> None:
        failures.append(exc)
        server.should_exit = True

    def ready() -> None:
        word = "resumed" if live.resumed else "started"
        say(f"hall {word}: {fleet.racks} racks, {fleet.gpus} GPUs, seed {fleet.seed}, at {address}")
        if faults_seed is not None:
            say(f"faults drawn from seed {faults_seed}:")
            for fault in live.draw(faults_seed, delay_s=60.0):
                say(f"  {fault.detector}: {fault.cause} on {fault.entity}, {fault.severity:g}")

    history = History(
        live, contracts, clock, kafka_outlet_maker(settings, contracts, clock),
        stopped=lambda: server.should_exit, fabric=fabric,
    )  # fmt: skip
    app = HallApp(live, history, when_ready=ready, on_failure=fail)
    config.app = app.starlette()
    say(f"hall at {address}: state in {folder}")
    server.run(sockets=[sock])
    if failures:
        raise failures[0]


def _write_json(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
