"""One Apache Kafka node in KRaft mode as a child process, of a cluster of one or more."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.bus.kafka_libs import find_java
from pipeline.clock import Clock, SystemClock
from pipeline.errors import RackpulseError

HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen at this port now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
        return True


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Ports that were all free at the same moment."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.bind((host, 0))
            found.append(int(sock.getsockname()[1]))
        return found


def ends_with_parent() -> Callable[[], None]:
    """For ``preexec_fn``: the kernel ends the child when this process is gone, also by -9."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between the two
            os._exit(1)

    return prepare


@dataclass(frozen=True)
class NodeSpec:
    """What a node needs to start.

    Attributes:
        voters: controller address of every node of the cluster, by node id.
        folder: its configuration, log and data.
        libs: folder of Kafka's jars.
        jvm: options of the Java machine.
        properties: further broker properties, or other values for ours.
    """

    node_id: int
    port: int
    voters: Mapping[int, str]
    folder: Path
    libs: Path
    cluster_id: str
    jvm: Sequence[str] = ("-Xms256m", "-Xmx512m")
    properties: Mapping[str, object] = field(default_factory=dict)

    def all_properties(self) -> dict[str, object]:
        """The broker's configuration."""
        copies = min(3, len(self.voters))
        insync = max(1, copies - 1)
        controller = self.voters[self.node_id]
        return {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "controller.quorum.voters": ",".join(f"{n}@{at}" for n, at in self.voters.items()),
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.folder / "data",
            "default.replication.factor": copies,
            "min.insync.replicas": insync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 8,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": insync,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": insync,
            "group.initial.rebalance.delay.ms": 0,
            # Topics come from schemas/topics.toml; a mistyped name must not make one.
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            # A node that was killed may come back only when its session has ended.
            "broker.session.timeout.ms": 6_000,
            "broker.heartbeat.interval.ms": 1_000,
            "num.recovery.threads.per.data.dir": 2,
            **self.properties,
        }


class KafkaNode:
    """Starts, watches and ends one node."""

    def __init__(self, spec: NodeSpec, clock: Clock | None = None) -> None:
        self.spec = spec
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.spec.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def log_file(self) -> Path:
        return self.spec.folder / "broker.log"

    def start(self) -> None:
        """Format the data folder where it is new, and start the node.

        Raises:
            RackpulseError: the data folder cannot be used.
            NoKafkaError: Java is missing.
        """
        java = find_java()
        self.spec.folder.mkdir(parents=True, exist_ok=True)
        config = self.spec.folder / "server.properties"
        lines = (f"{name}={value}\n" for name, value in self.spec.all_properties().items())
        config.write_text("".join(lines), encoding="utf-8")
        if not (self.spec.folder / "data" / "meta.properties").exists():
            self._format(java, config)
        if self.log_file.exists():
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        command = [java, *self.spec.jvm, *self._java_options(), "kafka.Kafka", str(config)]
        with self.log_file.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for us; we end the node in order.
                start_new_session=True,
                preexec_fn=ends_with_parent(),  # prctl is safe there
            )

    def _java_options(self) -> list[str]:
        log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [log_level, "-cp", str(self.spec.libs / "*")]

    def _format(self, java: str, config: Path) -> None:
        # -g: a format that was killed half way is done again.
        command = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *self._java_options(),
                   "kafka.tools.StorageTool", "format", "-g", "-t", self.spec.cluster_id,
                   "-c", str(config)]  # fmt: skip
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if answer.returncode:
            lines = (answer.stdout + answer.stderr).strip().splitlines()
            raise RackpulseError(
                f"Kafka cannot use {self.spec.folder / 'data'}: {lines[-1] if lines else '?'}. "
                "Remove that folder to begin with an empty log."
            )

    def exit_code(self) -> int | None:
        """The exit code once it has ended."""
        return self._process.poll() if self._process else None

    def check_running(self) -> None:
        """Raise RackpulseError, with the end of its log, when the node has ended."""
        code = self.exit_code()
        if code is not None:
            raise RackpulseError(
                f"The Kafka broker ended with code {code}. The end of {self.log_file}:\n"
                f"{self.last_lines()}"
            )

    def last_lines(self, count: int = 12) -> str:
        """The end of the node's log."""
        try:
            text = self.log_file.read_bytes()[-16_384:].decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])

    def stop(self, timeout_s: float = 25.0) -> None:
        """End it in order, or by force when it takes too long."""
        self._end(signal.SIGTERM, timeout_s)

    def kill9(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL, 10.0)

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP."""
        if self._process:
            self._process.send_signal(number)

    def _end(self, number: int, timeout_s: float) -> None:
        if not self._process:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def answers(bootstrap_servers: str, brokers: int = 1, timeout_s: float = 3.0) -> bool:
    """Whether the cluster answers with at least so many brokers."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    for address in bootstrap_servers.split(","):
        host, _, port = address.rpartition(":")
        try:
            # Cheap first: the client would try for seconds.
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
    limit = round(timeout_s * 1000)
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            request_timeout_ms=limit,
            bootstrap_timeout_ms=limit,
        )
    except (KafkaError, OSError):
        return False
    try:
        return len(admin.describe_cluster()["brokers"]) >= brokers
    except (KafkaError, OSError):
        return False
    finally:
        admin.close()
