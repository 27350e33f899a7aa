"""Brokers die, topics change under the writer, logs lose what was to be read."""

from __future__ import annotations

import random
import signal
import time

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from pipeline.bus.endpoint import ask_admin
from tests.faults.ledger import times
from tests.faults.scene import Load, Scene
from tests.support.wait import wait_until
from tests.writer.running import stored


def rows_of(scene: Scene, stream: str = "gpu") -> int:
    return sum(stored(scene.settings, stream).values())


def wait_for_more(scene: Scene, rows: int = 1, timeout_s: float = 120) -> None:
    before = rows_of(scene)
    wait_until(lambda: rows_of(scene) >= before + rows, "more rows", timeout_s)


def configure(scene: Scene, topic: str, **configs: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)
    ask_admin(scene.settings, lambda admin: admin.alter_configs([resource], incremental=True))


def delete_records(scene: Scene, topic: str, before: dict[int, int]) -> None:
    """Let the log begin later, as retention does."""
    places = {TopicPartition(topic, partition): at for partition, at in before.items()}
    ask_admin(scene.settings, lambda admin: admin.delete_records(places))


def test_leader_broker_killed_and_restarted(scene: Scene) -> None:
    rounds = times(1, 6)
    with scene.writer():
        with Load(scene, ["gpu", "event"], per_s=40):
            for turn in range(rounds):
                wait_for_more(scene)
                node = scene.kafka.leader_of("gpu", turn % 2)
                scene.kafka.kill9(node)
                wait_for_more(scene, 20, 90)
                scene.kafka.restart(node)
        scene.check("leader broker killed -9 and restarted", rounds, timeout_s=90)


@pytest.mark.slow
def test_all_brokers_restarted(scene: Scene) -> None:
    rounds = times(1, 4)
    with scene.writer():
        with Load(scene, ["gpu", "event"], per_s=40):
            for _ in range(rounds):
                wait_for_more(scene)
                scene.kafka.stop()
                scene.kafka.start()
                wait_for_more(scene, 20, 90)
        scene.check("all brokers killed -9 and restarted", rounds, timeout_s=90)


def test_topic_created_again(scene: Scene) -> None:
    scene.produce("gpu", 30)
    with scene.writer():
        scene.wait_stored()
        first = scene.ledger.total
        scene.create_topics()
        scene.ledger.rows.clear()
        # More than before: the writer's old position lies inside the new log.
        scene.produce("gpu", 60)
        wait_until(lambda: rows_of(scene) >= first + scene.ledger.total, "the new topic", 60)
        # And once more while the writer is not there.
    scene.create_topics()
    third = scene.produce("gpu", 20)
    with scene.writer():
        wait_until(lambda: rows_of(scene) >= first + 240 + 80, "the third topic", 60)
    rows = rows_of(scene)
    from tests.faults.ledger import OUTCOMES, Outcome

    wanted = first + 240 + 80
    lost, doubled = max(0, wanted - rows), max(0, rows - wanted)
    OUTCOMES.append(Outcome("topic created again, with and without a writer", 2, wanted, rows,
                            lost, doubled))  # fmt: skip
    assert rows == wanted
    assert len(third) == 20
    kinds = [kind for kind, *_ in scene.gaps()]
    assert kinds.count("recreated") >= 2


@pytest.mark.slow
def test_partitions_added(scene: Scene) -> None:
    with scene.writer():
        with Load(scene, ["gpu"], per_s=40):
            wait_for_more(scene)
            ask_admin(scene.settings, lambda admin: admin.create_partitions({"gpu": 5}))
        for partition in (2, 3, 4):
            scene.produce("gpu", 5, partition=partition)
        scene.check("partitions added, keys move", 1)
    # And while no writer is there: the member that comes back is given its old assignment.
    ask_admin(scene.settings, lambda admin: admin.create_partitions({"gpu": 6}))
    scene.produce("gpu", 5, partition=5)
    with scene.writer():
        scene.check("partitions added while the writer is away", 1)
    assert ("partitions_added", -1, -1, -1) in scene.gaps()


def test_retention_overtakes_a_stopped_writer(scene: Scene) -> None:
    with scene.writer():
        scene.produce("gpu", 20, partition=0)
        scene.wait_stored()
    scene.produce("gpu", 20, partition=0)
    delete_records(scene, "gpu", {0: 30})
    for offset in range(20, 30):
        del scene.ledger.rows["gpu"][0, offset]
    with scene.writer():
        scene.check("retention overtook a stopped writer", 1, "10 messages recorded as a gap")
        report = scene.verify()
    assert ("retention", 0, 20, 29) in scene.gaps()
    assert report.ok, report.as_json()


def test_retention_overtakes_a_running_writer(scene: Scene) -> None:
    with scene.writer() as writer:
        scene.produce("gpu", 20, partition=0)
        scene.wait_stored()
        writer.signal(signal.SIGSTOP)
        scene.produce("gpu", 20, partition=0)
        delete_records(scene, "gpu", {0: 35})
        writer.signal(signal.SIGCONT)
        wait_until(lambda: (0, 39) in stored(scene.settings, "gpu"), "the rest", 60)
    found = stored(scene.settings, "gpu")
    # What it had fetched already is stored, what it had not is a gap: nothing in between.
    missing = set(scene.ledger.of("gpu")) - set(found)
    gaps = [(first, last) for kind, p, first, last in scene.gaps() if kind == "retention"]
    recorded = {(0, offset) for first, last in gaps for offset in range(first, last + 1)}
    assert missing == recorded
    for place in missing:
        del scene.ledger.rows["gpu"][place]
    scene.check("retention overtook a running writer", 1, f"{len(missing)} recorded as a gap")


def test_quiet_partition_emptied_on_both_sides(scene: Scene) -> None:
    with scene.writer():
        scene.produce("gpu", 12, partition=0)
        scene.wait_stored()
    delete_records(scene, "gpu", {0: 12})
    from pipeline.store import connect

    with connect(scene.settings) as client:
        client.command("TRUNCATE TABLE telemetry.gpu")  # as retention does, by whole parts
    scene.ledger.rows.clear()
    with scene.writer():
        scene.produce("gpu", 3, partition=0)
        scene.check("raw retention emptied a quiet partition", 1)
    assert [gap for gap in scene.gaps() if gap[0] == "retention"] == []


def test_leaders_move_while_writers_come_and_go(scene: Scene) -> None:
    """Leaders move while writers come and go: positions carry the leader epoch."""
    rounds = times(1, 5)
    moments = random.Random(11)  # noqa: S311

    with Load(scene, ["gpu", "event"], per_s=40):
        for _ in range(rounds):
            with scene.writer():
                wait_for_more(scene)
                node = scene.kafka.leader_of("gpu", 0)
                scene.kafka.kill9(node)
                time.sleep(moments.uniform(0.5, 2.0))
            scene.kafka.restart(node)
    with scene.writer():
        scene.check("leaders move while writers come and go", rounds, timeout_s=90)
    assert [gap for gap in scene.gaps() if gap[0] in ("truncated", "retention")] == []
