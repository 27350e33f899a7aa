"""The writer is killed, stopped, doubled and moved about."""

from __future__ import annotations

import random
import signal
import time

from tests.faults.ledger import times
from tests.faults.scene import Load, Scene
from tests.support.wait import wait_until
from tests.writer.running import stored


def rows_of(scene: Scene, stream: str = "gpu") -> int:
    return sum(stored(scene.settings, stream).values())


def test_writer_killed_at_random_points(scene: Scene) -> None:
    kills = times(8, 200)
    moments = random.Random(1)  # noqa: S311
    with Load(scene, ["gpu", "event"], per_s=40):
        for _ in range(kills):
            size = str(moments.choice([20, 200, 2_000]))
            epochs = scene.count("writer_epoch")
            writer = scene.writer("--max-rows", size).start()
            if moments.random() < 0.8:
                # Most die at work: between taking over, inserting and committing.
                wait_until(lambda e=epochs: scene.count("writer_epoch") > e, "a take-over", 30)
                time.sleep(moments.uniform(0.0, 0.8))
            else:
                time.sleep(moments.uniform(0.0, 1.0))
            writer.kill9()
    blocks = scene.blocks()
    with scene.writer():
        scene.check("writer killed -9 at random points", kills, f"they stored {blocks} blocks")
        report = scene.verify()
    assert report.ok, report.as_json()


def test_writer_stopped_for_longer_than_its_session(scene: Scene) -> None:
    rounds = times(1, 4)
    with Load(scene, ["gpu", "event"], per_s=40):
        paused = scene.writer(name="-paused").start()
        for _ in range(rounds):
            before = rows_of(scene)
            wait_until(lambda b=before: rows_of(scene) > b, "the writer to store", 30)
            paused.signal(signal.SIGSTOP)
            with scene.writer("--instance", "2"):
                before = rows_of(scene)
                wait_until(lambda b=before: rows_of(scene) > b + 20, "the other to store", 40)
                paused.signal(signal.SIGCONT)
                before = rows_of(scene)
                wait_until(lambda b=before: rows_of(scene) > b + 20, "both to go on", 40)
    scene.check("writer stopped (SIGSTOP) beyond its session, then continued", rounds)


def test_two_writers_on_one_partition(scene: Scene) -> None:
    rounds = times(1, 10)
    with Load(scene, ["gpu", "event"], per_s=60):
        for _ in range(rounds):
            # Two groups: both are given every partition.
            one = scene.writer("--group", "one").start()
            two = scene.writer("--group", "two", name="-two").start()
            before = rows_of(scene)
            wait_until(lambda b=before: rows_of(scene) > b + 60, "one of them to store", 40)
            one.kill9()
            two.kill9()
    with scene.writer():
        scene.check("two writers on every partition at once", rounds)


def test_rebalances_with_writers_that_join_and_leave(scene: Scene) -> None:
    changes = times(3, 20)
    moments = random.Random(3)  # noqa: S311
    with Load(scene, ["gpu", "event"], per_s=40):
        writers = {n: scene.writer("--instance", str(n), name=f"-{n}") for n in (1, 2, 3)}
        writers[1].start()
        for _ in range(changes):
            one = writers[moments.choice([1, 2, 3])]
            if one.running:
                moments.choice([one.stop, one.kill9])()
            else:
                one.start()
            time.sleep(moments.uniform(0.3, 2.0))
        for each in writers.values():
            each.stop()
    with scene.writer("--instance", "1"):
        scene.check("rebalances: three writers join, leave, are killed", changes)
