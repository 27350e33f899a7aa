"""A real Apache Kafka of one or three brokers for a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.bus.broker import TansuBroker, new_cluster_id
from pipeline.bus.endpoint import ask_admin
from pipeline.bus.kafka_libs import NoKafkaError, fetch_libs
from pipeline.bus.node import HOST, KafkaNode, NodeSpec, answers, free_ports
from pipeline.clock import SystemClock
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from tests.support.wait import wait_until

_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# A lost node is noticed within two seconds instead of nine.
_FAST = {
    "group.min.session.timeout.ms": 1_000,
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
}


class RunningKafka:
    """One broker, or three that replicate (copies 3, min ISR 2); ports stay over restarts.

    Use it as a context manager, or call start() and stop(). Nodes are numbered from 1.

    Args:
        folder: an empty folder, such as ``tmp_path / "kafka"``.
        properties: further broker properties.
    """

    def __init__(
        self, folder: Path, brokers: int = 1, properties: Mapping[str, object] | None = None
    ) -> None:
        try:
            libs = fetch_libs()
        except NoKafkaError as exc:
            raise RackpulseError(f"tests marked kafka need Java and Maven: {exc}") from exc
        ports = free_ports(2 * brokers)
        ids = range(1, brokers + 1)
        voters = {node: f"{HOST}:{ports[brokers + node - 1]}" for node in ids}
        spec = NodeSpec(
            node_id=1,
            port=ports[0],
            voters=voters,
            folder=folder,
            libs=libs,
            cluster_id=new_cluster_id(),
            jvm=_JVM,
            properties={**_FAST, **(properties or {})},
        )
        self.nodes = {
            node: KafkaNode(
                replace(spec, node_id=node, port=ports[node - 1], folder=folder / f"node-{node}")
            )
            for node in ids
        }

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes."""
        return ",".join(node.address for node in self.nodes.values())

    def settings(self, **others: Any) -> Settings:
        """Settings that name this Kafka."""
        return Settings(bootstrap_servers=self.bootstrap, **others)

    def start(self) -> RunningKafka:
        """Start all nodes and wait until they answer."""
        for node in self.nodes.values():
            node.start()
        self.wait()
        return self

    def wait(self, brokers: int | None = None, timeout_s: float = 90.0) -> None:
        """Wait until so many brokers (all by default) are in the cluster."""
        wanted = len(self.nodes) if brokers is None else brokers
        running = [node for node in self.nodes.values() if node.pid]

        def ready() -> bool:
            for node in running:
                node.check_running()
            return all(answers(node.address, wanted) for node in running)

        wait_until(ready, f"{wanted} Kafka brokers", timeout_s)

    def stop(self) -> None:
        """End all nodes. Their data stays; start() goes on with it."""
        for node in self.nodes.values():
            # By force: an orderly stop of a quorum waits for nodes that are gone already.
            node.kill9()

    def kill9(self, node: int = 1) -> None:
        """Kill one node at once."""
        self.nodes[node].kill9()

    def restart(self, node: int = 1, wait: bool = True) -> None:
        """Start a node that was killed."""
        self.nodes[node].start()
        if wait:
            self.wait()

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Node that leads a partition now."""
        (described,) = ask_admin(self.settings(), lambda admin: admin.describe_topics([topic]))
        found = {each["partition_index"]: each for each in described["partitions"]}
        return int(found[partition]["leader_id"])

    def __enter__(self) -> RunningKafka:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextmanager
def running_tansu(folder: Path) -> Iterator[Settings]:
    """The wheel's broker while the block runs; yields settings that name it."""
    broker = TansuBroker(free_ports(1)[0], folder, SystemClock())
    broker.start()
    try:
        wait_until(lambda: answers(broker.address), "the wheel's broker", 30)
        yield Settings(bootstrap_servers=broker.address)
    finally:
        broker.stop()
